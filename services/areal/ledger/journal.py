"""The controller's journal: what must outlive Redis and the controller.

Owns the tombstones, the batches (which groups each step trains, for ever) and where the last trainer started. Each
entry is on disk before anybody acts on it. An entry of an old controller written after a newer one started is void, so
two of them at once can't disagree. Never holds samples, never shrinks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from areal.errors import BugError, DataError
from areal.ledger.lines import LineWriter, Record, RecordLine, read_lines


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A group that ends without being trained."""

    group: int
    reason: str
    fence: int  # of the controller
    detail: str = ""
    passes: int = 0
    tries: int = 0  # samples that were scored, where somebody counts


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    """How many of a group's samples passed."""

    group: int
    passes: int
    tries: int


@dataclass(frozen=True, slots=True)
class PoolChange:
    """Rows are judged by what groups below `committed` measured; that counts from `from_group` on."""

    committed: int
    from_group: int


@dataclass(frozen=True, slots=True)
class TrainerStart:
    """A trainer of this fence went on from a checkpoint of `step`."""

    fence: int
    step: int


@dataclass(slots=True)
class JournalState:
    """What a journal says."""

    fence: int = 0  # newest controller that started
    tombstones: dict[int, Tombstone] = field(default_factory=dict)
    trainer: TrainerStart | None = None  # the newest
    batches: list[tuple[int, ...]] = field(default_factory=list)  # by step
    ahead: list[tuple[int, int]] = field(default_factory=list)  # a step, and how far generation might be ahead then
    short: dict[int, tuple[int, ...]] = field(default_factory=dict)  # groups closed with fewer samples: which
    pools: list[MeasuredGroup | PoolChange] = field(default_factory=list)  # in their order
    rounds: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)  # windows of rows: first group, places
    starts: int = 0  # of controllers
    torn: int = 0  # lines that a crash cut
    damaged: list[int] = field(default_factory=list)  # numbers of lines that no crash explains


class JournalLines(Protocol):
    """A file of lines, as the journal uses it."""

    def read(self) -> Sequence[RecordLine]:
        """All lines, damaged ones included."""

    def append(self, records: Sequence[Record], *, sync: bool) -> None:
        """Write these; with `sync` they are on disk when it returns."""

    def close(self) -> None:
        """Give the file back."""


class FileLines:
    """The lines of a real file, which the first append creates."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: LineWriter | None = None

    def read(self) -> Sequence[RecordLine]:
        """See `JournalLines.read`; none when there is no file."""
        return read_lines(self._path)

    def append(self, records: Sequence[Record], *, sync: bool) -> None:
        """See `JournalLines.append`."""
        if self._writer is None:
            self._writer = LineWriter(self._path)
        self._writer.append(records, sync=sync)

    def close(self) -> None:
        """See `JournalLines.close`."""
        if self._writer is not None:
            self._writer.close()


class Journal:
    """Reads and appends `<run>/journal/controller.jsonl`. One writer; call `start` before the first append."""

    def __init__(self, path: Path, lines: JournalLines | None = None) -> None:
        self.path = path
        self._lines = lines or FileLines(path)
        self._fence = 0

    def start(self, fence: int) -> JournalState:
        """A controller starts: voids what older ones may still write, then answers what holds.

        Raises `DataError` when a line is damaged in a way that no crash explains: batches can't be trusted then.
        """
        self._fence = fence
        self._append([{"kind": "start"}])
        return self.replay()

    def append_tombstones(self, tombstones: Sequence[Tombstone]) -> None:
        """Several groups end, for one fsync."""
        if tombstones and not self._fence:
            self.start(tombstones[0].fence)
        self._append(
            [
                {"kind": "tombstone", "group": t.group, "reason": t.reason, "detail": t.detail}
                | ({"passes": t.passes, "tries": t.tries} if t.tries else {})
                for t in tombstones
            ]
        )

    def append_batch(
        self, step: int, groups: Sequence[int], measured: Sequence[tuple[int, int, int]] = (), ahead: int | None = None
    ) -> None:
        """The groups that `step` trains. `measured` are (group, passes, tries) of them, where somebody counts; `ahead`
        is how many batches generation may be ahead then."""
        more = {**({"measured": list(measured)} if measured else {}), **({} if ahead is None else {"ahead": ahead})}
        self._append([{"kind": "assign", "step": step, "groups": list(groups), **more}])

    def append_trainer(self, fence: int, step: int) -> None:
        """A trainer of that fence goes on from a checkpoint of `step`."""
        self._append([{"kind": "trainer", "trainer_fence": fence, "step": step}])

    def append_pools(self, committed: int, from_group: int) -> None:
        """Rows are judged: see `PoolChange`."""
        self._append([{"kind": "pools", "committed": committed, "from_group": from_group}])

    def append_rounds(self, first: int, places: Sequence[int]) -> None:
        """Rows of the groups from `first` on change places, as `areal.data.order.RoundsOrder` has it."""
        self._append([{"kind": "rounds", "first": first, "places": list(places)}])

    def append_short(self, group: int, indices: Sequence[int]) -> None:
        """A group closes complete with these samples only, its deadline being over."""
        self._append([{"kind": "short", "group": group, "indices": list(indices)}])

    def replay(self) -> JournalState:
        """State of the journal now. Raises as `start` does."""
        state = _state_of(self._lines.read())
        if state.damaged:
            raise DataError(
                f"{self.path} is damaged in line {state.damaged[0]}: it decides which step trains what",
                fix="restore the file from a backup, or start the run anew in another directory",
            )
        return state

    def close(self) -> None:
        """Gives the file back."""
        self._lines.close()

    def _append(self, records: Sequence[dict[str, Any]]) -> None:
        if not self._fence:
            raise BugError("a journal is written to before start(fence)")
        if records:
            self._lines.append([{**record, "fence": self._fence} for record in records], sync=True)


def read_journal(path: Path) -> JournalState:
    """State of a journal, with its damage listed instead of raised."""
    return _state_of(read_lines(path))


def _state_of(lines: Sequence[RecordLine]) -> JournalState:
    """A damaged line is torn by a crash when it is the last one or when the next whole line is a start."""
    state = JournalState()
    suspects: list[int] = []
    for line in lines:
        if line.record is None:
            suspects.append(line.number)
            continue
        if suspects:
            if line.record["kind"] == "start":
                state.torn += len(suspects)
            else:
                state.damaged += suspects
            suspects = []
        apply(state, line.record)
    state.torn += len(suspects)
    return state


def apply(state: JournalState, record: Record) -> None:
    """One more entry of the journal."""
    fence = int(record["fence"])
    if fence < state.fence:
        return  # of an old controller
    state.fence = fence
    match record["kind"]:
        case "start":
            state.starts += 1
        case "tombstone":
            group = int(record["group"])
            state.tombstones.setdefault(group, Tombstone(group, record["reason"], fence, record["detail"]))
            if "tries" in record:
                state.pools.append(MeasuredGroup(group, int(record["passes"]), int(record["tries"])))
        case "pools":
            state.pools.append(PoolChange(int(record["committed"]), int(record["from_group"])))
        case "rounds":
            state.rounds.append((int(record["first"]), tuple(record["places"])))
        case "assign":
            state.pools += [MeasuredGroup(*counts) for counts in record.get("measured", ())]
            if int(record["step"]) == len(state.batches):
                state.batches.append(tuple(record["groups"]))
                state.ahead += [] if "ahead" not in record else [(int(record["step"]), int(record["ahead"]))]
        case "trainer":
            began = TrainerStart(int(record["trainer_fence"]), int(record["step"]))
            if state.trainer is None or began.fence >= state.trainer.fence:
                state.trainer = began
        case "short":
            state.short[int(record["group"])] = tuple(record["indices"])
        case _:
            pass
