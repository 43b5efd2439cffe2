"""The sending side of an upload: a manifest, then those files that the other side lacks.

Owns the order of the conversation with `receive`. Knows nothing of pods: it is given a channel.
"""

import io
import json
import tarfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from areal.errors import DataError, InfraError

from areal_operator.submit.inputs import File, Tree

_WRITE_BYTES = 256 << 10
_ANSWER_S = 600.0  # the other side digests what it has before it answers, and syncs what it got after
_AGAIN = "Submit again: what arrived is kept, only the rest is sent."


class Channel(Protocol):
    """Two-way pipe to a running `receive`."""

    def write(self, data: bytes) -> None:
        """Send; raises InfraError when the other side is gone."""

    def line(self, timeout_s: float) -> bytes:
        """The next line of its output without the newline; raises InfraError after the time or when it is gone."""


class Programs(Protocol):
    """Starts a program in a pod; the cluster does."""

    def __call__(
        self, namespace: str, pod: str, container: str, command: list[str]
    ) -> AbstractContextManager[Channel]: ...


Say = Callable[[str], None]  # Told sentences for the user
Sent = Callable[[int], None]  # Told how many bytes of content were sent


def plan(trees: Iterable[Tree], channel: Channel) -> dict[str, File]:
    """Offer all files; returns those that the other side lacks, by their path there."""
    offered = {f"{tree.directory}/{file.path}": file for tree in trees for file in tree.files}
    entries = [{"path": path, "size": file.size, "sha256": file.sha256} for path, file in offered.items()]
    manifest = json.dumps(entries).encode()
    channel.write(len(manifest).to_bytes(8, "big") + manifest)
    return {path: offered[path] for path in answer_of(channel)["missing"]}


def send(missing: dict[str, File], channel: Channel, sent: Sent) -> None:
    """Send the files that are missing; raises when one did not arrive as it was read."""
    if not missing:
        return
    try:
        _stream(missing, channel, sent)
    except InfraError as broken:
        try:
            answer_of(channel)  # the other side may have said why it stopped listening
        except InfraError as why:
            raise why from broken
        raise
    answer = answer_of(channel)
    if answer["wrong"]:
        raise DataError(f"{', '.join(answer['wrong'])} did not arrive as digested: changed meanwhile?", fix=_AGAIN)
    if answer["received"] != len(missing):
        raise InfraError(f"{answer['received']} of {len(missing)} files arrived", fix=_AGAIN)


def _stream(missing: dict[str, File], channel: Channel, sent: Sent) -> None:
    writer = io.BufferedWriter(_Raw(channel), _WRITE_BYTES)
    with tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT) as stream:
        for path, file in missing.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = file.size, 0o644
            try:
                with file.source.open("rb") as source:
                    stream.addfile(member, _ReadCounter(source, sent))
            except OSError as error:
                raise DataError(f"{file.source} changed or vanished while it was sent: {error}", fix=_AGAIN) from error
    writer.flush()


def answer_of(channel: Channel, act: str = "keep the files", within_s: float = _ANSWER_S) -> Any:
    """The JSON of the next line. `act`: what the pod can't do where it says that it can't."""
    line = channel.line(within_s)
    try:
        answer: Any = json.loads(line)
    except ValueError:
        shown = line.decode(errors="replace")
        raise InfraError(f"the pod answered {shown!r}", fix="Check the image of the runtime's tools role.") from None
    if "error" in answer:
        raise InfraError(f"the pod can't {act}: {answer['error']}", fix="Check the volume: space, permissions.")
    return answer


class _Raw(io.RawIOBase):
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._channel.write(bytes(data))
        return len(data)


class _ReadCounter:
    """A file that tells how much of it was read."""

    def __init__(self, source: Any, sent: Sent) -> None:
        self._source, self._sent = source, sent

    def read(self, count: int = -1) -> bytes:
        data: bytes = self._source.read(count)
        self._sent(len(data))
        return data
