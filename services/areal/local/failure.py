"""What a person needs when a run fails: which role, how it ended, its last words, where the log is, what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from areal.errors import ArealError, ExitCode, InfraError, by_kind
from areal.errors import Kind as ErrorKind
from areal.launch.exits import exit_code_of
from areal.launch.logfile import tail
from areal.local.supervisor import Outcome

_LINES = 12  # of the log; the path of all of it is told, too
_FIX = re.compile(r"^\s*fix: (.+)$")

_ADVICE = {
    ExitCode.CONFIG: "correct the job file and start again",
    ExitCode.DATA: "correct the dataset, model or recipe and start again",
    ExitCode.INFRA: "see to what the log names, then go on with --resume",
    ExitCode.BUG: "report this with the log; --resume goes on from the last checkpoint",
}
_KINDS = {
    ExitCode.CONFIG: ErrorKind.CONFIG,
    ExitCode.DATA: ErrorKind.DATA,
    ExitCode.INFRA: ErrorKind.INFRA,
    ExitCode.BUG: ErrorKind.BUG,
}


def explain(outcome: Outcome, logs: Path) -> ArealError:
    """The error of a failed run, with the exit code that its failed role earned."""
    failed = outcome.failed
    if failed is None:
        return InfraError(outcome.reason, fix=_ADVICE[ExitCode.INFRA])
    path = logs / f"{failed.name}.log"
    last = tail(path, 200)
    code = failed.last_exit.code if failed.last_exit else int(ExitCode.BUG)
    own = exit_code_of(code)
    shown = "\n".join(f"    {line}" for line in last[-_LINES:]) or "    (nothing was logged)"
    message = f"{failed.name} failed: {outcome.reason}\n  last lines of {path}:\n{shown}"
    return by_kind(_KINDS[own], message, fix=_own_fix(last) or _ADVICE[own])


def _own_fix(lines: Sequence[str]) -> str:
    """The fix that the role itself printed last."""
    fixes = [match[1] for line in lines if (match := _FIX.match(line))]
    return fixes[-1] if fixes else ""
