"""Merge of a run's log files into one stream, in the order of time.

Owns the reading of `logs/`: which file is which role's, rotated parts first, and each line's time. A line without a
time (a traceback, an engine's banner) belongs to the one before it. Never reads more than a line a file ahead.
"""

import heapq
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from areal.errors import ConfigError

_STAMP = re.compile(r"^(?:════ |\[)?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
_AGE = re.compile(r"^(\d+(?:\.\d+)?)([smhd])$")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_ROTATED = ".1"  # suffix of the part before, as `areal.processes.logfile` names it


@dataclass(frozen=True, order=True)
class LogLine:
    """One line of a role's log. `at` (unix seconds) is of the last stamp at or before it; 0.0 before the first."""

    at: float
    role: str
    number: int
    text: str


def since(age: str, now: float) -> float:
    """Unix seconds of `age` ago: `90s`, `10m`, `2h`, `1d`. Raises ConfigError for anything else."""
    if (match := _AGE.match(age)) is None:
        raise ConfigError(f"{age!r} is no age", fix="write a number and s, m, h or d, for example --since 10m")
    return now - float(match[1]) * _UNIT_S[match[2]]


def log_files(logs: Path, roles: Sequence[str] = ()) -> dict[str, list[Path]]:
    """Files of each role, oldest part first, of those that `roles` name: `worker` names worker-0 and worker-1, too.

    Raises ConfigError when there is none, or a name fits no role.
    """
    found = {path.name.removesuffix(".log"): [path] for path in sorted(logs.glob("*.log"))}
    for name, parts in found.items():
        older = logs / f"{name}.log{_ROTATED}"
        if older.exists():
            parts.insert(0, older)
    if not found:
        raise ConfigError(f"{logs} holds no logs", fix="name a run that started")
    for role in roles:
        if not any(fits(name, role) for name in found):
            raise ConfigError(f"no role {role!r} logged anything", fix=f"name one of {', '.join(found)}")
    return {name: parts for name, parts in found.items() if not roles or any(fits(name, role) for role in roles)}


def merged(files: dict[str, list[Path]], not_before: float = 0.0) -> Iterator[LogLine]:
    """Lines of all files in the order of time, from `not_before` on (unix seconds)."""
    streams = [_lines(role, parts) for role, parts in files.items()]
    return (line for line in heapq.merge(*streams) if line.at >= not_before)


class Follower:
    """What was appended to some log files since the last look, the beginning of a line kept until its end is there."""

    def __init__(self, files: dict[str, list[Path]]) -> None:
        """Starts at the end of each file."""
        self._files = {role: parts[-1] for role, parts in files.items()}
        self._offsets = {role: path.stat().st_size for role, path in self._files.items()}

    def new(self) -> list[tuple[str, str]]:
        """(role, line) of each whole line that is new, role by role."""
        found: list[tuple[str, str]] = []
        for role, path in self._files.items():
            try:
                if path.stat().st_size < self._offsets[role]:
                    self._offsets[role] = 0  # rotated: a new part began
                with path.open("rb") as file:
                    file.seek(self._offsets[role])
                    data = file.read()
            except OSError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[role] += len(whole)
            found += [(role, line) for line in whole.decode(errors="replace").splitlines()]
        return found


def fits(name: str, role: str) -> bool:
    """Whether `role` names the role `name`: worker names worker-0, too."""
    return name == role or (name.startswith(f"{role}-") and name.removeprefix(f"{role}-").isdigit())


def _lines(role: str, parts: Sequence[Path]) -> Iterator[LogLine]:
    at, number = 0.0, 0
    for path in parts:
        try:
            file = path.open(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue  # rotated away meanwhile
        with file:
            for text in file:
                at = max(at, stamp_of(text) or 0.0)
                number += 1
                yield LogLine(at, role, number, text.rstrip("\n"))


def stamp_of(text: str) -> float | None:
    """Unix seconds of the local time that a line begins with; None where it begins with none."""
    if (match := _STAMP.match(text)) is None:
        return None
    try:
        return time.mktime(time.strptime(f"{match[1]} {match[2]}", "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):
        return None
