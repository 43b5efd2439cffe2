"""One log file a role: a header line at every start, and its last lines when something went wrong."""

from __future__ import annotations

import contextlib
import os
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
    """What each start in the end of the file logged, oldest first; never empty."""
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
