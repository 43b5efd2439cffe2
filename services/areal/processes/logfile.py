"""One log file a role: a header line at every start, and its last lines when something went wrong.

A tee copies a child's output there and to our standard output, which becomes the container's log. The file is bounded,
because it may lie in the memory of a pod, or on a volume that a run must not fill; what a container logs is its
runtime's to bound.
"""

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_HEADER = "════"  # starts a header line; a role's own lines don't
_TAIL_BYTES = 64 * 1024  # enough for a long traceback, cheap to read


def open_with_header(path: Path, text: str) -> int:
    """Open `path` for appending, write the header of a start, and return the descriptor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    clock = time.strftime("%Y-%m-%d %H:%M:%S")
    with contextlib.suppress(OSError):  # a full volume silences a log, it stops no role
        os.write(descriptor, f"{_HEADER} {clock} {text} {_HEADER}\n".encode())
    return descriptor


@dataclass(frozen=True)
class Excerpt:
    """Last lines of one start. `start` is that start's header when a later one logged nothing, else empty."""

    lines: list[str]
    start: str = ""


def tail(path: Path, lines: int = 40) -> list[str]:
    """The last lines of the newest start, without its header; empty when there is no file."""
    return _starts(path)[-1].lines[-lines:]


def last_words(path: Path, lines: int = 40) -> Excerpt:
    """The last lines of the newest start that logged any: one that was killed at once had no time to."""
    starts = _starts(path)
    told = next((start for start in reversed(starts) if start.lines), starts[-1])
    return Excerpt(told.lines[-lines:], "" if told is starts[-1] else told.start)


def _starts(path: Path) -> list[Excerpt]:
    """Lines of each start in the end of the file, oldest first; never empty."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            found = file.read().decode(errors="replace").splitlines()
    except OSError:
        found = []
    starts = [Excerpt([])]
    for line in found:
        if line.startswith(_HEADER):
            starts.append(Excerpt([], line.strip(f"{_HEADER[0]} ")))
        elif line.strip():
            starts[-1].lines.append(line)
    return starts


LIMIT_BYTES = 8 << 20
"""Of a log file; the one before it is kept beside it as `.1`."""

_CHUNK = 64 * 1024
_PATIENCE_S = 5.0  # of a reader whose writers are gone; it only drains the pipe


class Mirror:
    """`write_end`, a descriptor to give to a child and then to close: what is written there arrives at both places.

    A place that fails (a full volume) is left out from then on; the child never notices. Ends by itself when nobody
    holds the descriptor any more.
    """

    def __init__(self, path: Path, log: int, output: int, limit_bytes: int = LIMIT_BYTES) -> None:
        """Takes over `log`, the open file at `path`, and `output`; closes them at the end."""
        self._path = path
        self._log = log
        self._output = output
        self._limit = limit_bytes
        self._failed: set[int] = set()
        self._read, self.write_end = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._copy, name="mirror", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until everything that was written has arrived."""
        self._thread.join(_PATIENCE_S)

    def _copy(self) -> None:
        try:
            while data := os.read(self._read, _CHUNK):
                self._write(self._output, data)
                self._rotate(len(data))
                self._write(self._log, data)
        finally:
            for descriptor in (self._read, self._log, self._output):
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def _write(self, target: int, data: bytes) -> None:
        if target in self._failed:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(target, view) :]
        except OSError:
            self._failed.add(target)

    def _rotate(self, more: int) -> None:
        """Begin a new file where the next words would make this one too long."""
        with contextlib.suppress(OSError):
            if os.fstat(self._log).st_size + more <= self._limit:
                return
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            fresh = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            os.dup2(fresh, self._log, inheritable=False)
            os.close(fresh)
            self._failed.discard(self._log)
