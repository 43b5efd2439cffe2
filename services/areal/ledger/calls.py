"""The ledger's operations as calls on Redis: which script, which arguments, what its answer means.

Owns the layout of keys and the reading of answers, once for both clients. Does no IO.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

from areal.errors import InfraError
from areal.ledger import values
from areal.ledger.state import fenced

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script's text and the name Redis knows it by."""

    text: bytes
    sha: str


@dataclass(frozen=True, slots=True)
class LedgerCall(Generic[T]):
    """One atomic operation: run `script`, give its answer to `read`."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | bytes | int, ...]
    read: Callable[[Any], T]


@cache
def script(name: str) -> Script:
    """A script of the package; all but `add_sample` begin with the prelude."""
    folder = files("areal.ledger") / "scripts"
    text = (folder / f"{name}.lua").read_bytes()
    if name != "add_sample":
        text = (folder / "prelude.lua").read_bytes() + text
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


class Calls:
    """Builds the calls of one job."""

    def __init__(self, job: str) -> None:
        tag = f"{{{job}}}"
        self.meta, self.closed = f"{tag}:meta", f"{tag}:closed"
        self.batches, self.ready = f"{tag}:batches", f"{tag}:ready"
        self.samples_prefix = f"{tag}:s:"

    def samples(self, group: int) -> str:
        """The key that holds a group's samples."""
        return f"{self.samples_prefix}{group}"

    def add_sample(self, sample: values.NewSample) -> LedgerCall[values.AddResult]:
        """See `LedgerModel.add_sample`."""
        return LedgerCall(
            script("add_sample"),
            (self.samples(sample.group),),
            (sample.group, sample.index, sample.payload, sample.meta.pack(), self.meta, self.closed),
            _read_add,
        )

    def claim(self, fence: int) -> LedgerCall[None]:
        """See `LedgerModel.claim`."""
        return self._call("claim", (fence,), _reader("controller", fence, lambda _: None))

    def close(
        self, fence: int, group: int, outcome: str, group_size: int, at_least: int | None = None
    ) -> LedgerCall[values.CloseResult]:
        """See `LedgerModel.close`."""
        needed = group_size if at_least is None else at_least
        args: tuple[int | str, ...] = (fence, group, outcome, group_size, needed, *sorted(values.AFTER_COMPLETE))
        return self._call("close", args, _reader("controller", fence, _read_close))

    def assign(self, fence: int, step: int, groups: Sequence[int]) -> LedgerCall[None]:
        """See `LedgerModel.assign`."""
        return self._call("assign", (fence, step, *groups), _reader("controller", fence, lambda _: None))

    def advance(self, fence: int, low: int) -> LedgerCall[None]:
        """See `LedgerModel.advance`."""
        return self._call("advance", (fence, low), _reader("controller", fence, lambda _: None))

    def reopen(self, fence: int, group: int) -> LedgerCall[bool]:
        """See `LedgerModel.reopen`."""
        return self._call("reopen", (fence, group), _reader("controller", fence, lambda answer: answer[1] == b"1"))

    def recover(self, fence: int, step: int) -> LedgerCall[int]:
        """See `LedgerModel.recover`; answers the steps committed."""
        return self._call("recover", (fence, step), _reader("trainer", fence, _read_number))

    def take(self, fence: int, step: int) -> LedgerCall[list[tuple[int, str]]]:
        """The markers of `LedgerModel.take`: (group, outcome)."""
        return self._call("take", (fence, step), _reader("trainer", fence, _read_markers))

    def commit(self, fence: int, step: int) -> LedgerCall[int]:
        """See `LedgerModel.commit`."""
        return self._call("commit", (fence, step), _reader("trainer", fence, _read_number))

    def scan(self, groups: Sequence[int]) -> LedgerCall[list[tuple[int, int, dict[int, values.SampleMeta]]]]:
        """Of some groups: (group, bytes, index → meta)."""
        return self._call("scan", tuple(groups), _read_scan)

    def sweep(self, fence: int, groups: Sequence[int]) -> LedgerCall[int]:
        """Deletes what is held below the low watermark; answers how many groups that was."""
        return self._call("sweep", (fence, *groups), _reader("trainer", fence, _read_number))

    def _call(self, name: str, args: tuple[int | str, ...], read: Callable[[Any], T]) -> LedgerCall[T]:
        return LedgerCall(
            script(name), (self.meta, self.closed, self.batches, self.ready), (self.samples_prefix, *args), read
        )


def read_group(group: int, outcome: str, fields: Mapping[bytes, bytes]) -> values.TakenGroup:
    """A taken group from its marker and the fields of its samples key."""
    if outcome != values.COMPLETE:
        return values.TakenGroup(group, outcome)
    indices = sorted(int(name[1:]) for name in fields if name[:1] == b"m" and b"p" + name[1:] in fields)
    return values.TakenGroup(
        group,
        outcome,
        tuple(fields[b"p%d" % i] for i in indices),
        tuple(indices),
        tuple(values.SampleMeta.unpack(fields[b"m%d" % i]) for i in indices),
    )


def _reader(role: str, fence: int, read: Callable[[Any], T]) -> Callable[[Any], T]:
    def checked(answer: Any) -> T:
        if answer[0] == b"FENCED":
            raise fenced(role, fence, int(answer[1]))
        return read(answer)

    return checked


def _read_add(answer: Any) -> values.AddResult:
    return values.AddResult(
        values.AddOutcome(answer[0].decode()), values.SampleMeta.unpack(answer[1]) if answer[1] else None
    )


def _read_close(answer: Any) -> values.CloseResult:
    if answer[0] == b"MISSING":
        return values.CloseResult(values.CloseStatus.MISSING, None, tuple(map(int, answer[1:])))
    status = values.CloseStatus.CLOSED if answer[0] == b"CLOSED" else values.CloseStatus.ALREADY
    return values.CloseResult(status, answer[1].decode() if answer[1] else None)


def _read_number(answer: Any) -> int:
    return int(answer[1])


def _read_markers(answer: Any) -> list[tuple[int, str]]:
    return [(int(group), outcome.decode()) for group, outcome in zip(answer[1::2], answer[2::2], strict=True)]


def _read_scan(answer: Any) -> list[tuple[int, int, dict[int, values.SampleMeta]]]:
    return [
        (
            int(page[0]),
            int(page[1]),
            {int(i): values.SampleMeta.unpack(meta) for i, meta in zip(page[2::2], page[3::2], strict=True)},
        )
        for page in answer[1:]
    ]


def lost_samples(group: int) -> InfraError:
    """A complete group whose samples are gone though nobody freed them."""
    return InfraError(
        f"group {group} is closed complete, but the replay store lost samples of it",
        fix="the controller reopens the group, or the trainer recovers from its checkpoint",
    )
