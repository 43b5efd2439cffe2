"""The long-lived bash of a box: working directory, variables, functions and background jobs stay between commands.

Bash reads from a pipe one `eval` a command, and reports its exit code, its directory and its exported variables. A
shell that had to be ended is replaced by one that has the directory and the exported variables of the last report.
"""

from __future__ import annotations

import os
import shlex
from typing import NoReturn

from areal_judge.boxes.driver.worker import REPORTS, CommandWorker

_ARGUMENTS = ["bash", "--noprofile", "--norc", "-s"]
_WORDS = 'builtin printf "%d\\n%s\\0" "$code" "$PWD"; builtin export -p; builtin printf "\\0";'
_DEFINED = f"__report() {{ local code=$?; {{ {_WORDS} }} >&{REPORTS} 2>/dev/null; }}\n"
_REPORT = "__report\n"  # a word of its own: bash reads braces wrongly after a command whose quotes don't close


class Shell(CommandWorker):
    """Bash."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = ""
        self._exports = ""

    def become(self) -> NoReturn:
        """Standard input is the script; a command's own is /dev/null."""
        os.execvpe("bash", _ARGUMENTS, {**os.environ, "TERM": "dumb"})

    def encoded(self, source: str, *, fresh: bool) -> bytes:
        closed = f"</dev/null {REPORTS}>&-"
        before = _DEFINED if fresh else ""
        if fresh and self._directory:
            directory = shlex.quote(self._directory)
            before += f"eval {shlex.quote(self._exports)} 2>/dev/null {closed}\ncd -- {directory} 2>/dev/null\n"
        return f"{before}eval {shlex.quote(source)} {closed}\n{_REPORT}".encode("utf-8", "surrogateescape")

    def code_of(self, report: bytes) -> int | None:
        parts = report.split(b"\0")
        if len(parts) < 3:
            return None
        code, _, directory = parts[0].decode("utf-8", "surrogateescape").partition("\n")
        if not code.isdigit():
            return 255  # something wrote into the pipe
        self._directory, self._exports = directory, parts[1].decode("utf-8", "surrogateescape")
        return int(code)
