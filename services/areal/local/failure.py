"""Failure report of a local run: which role, how it ended, its last words, where the log is, what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from areal.errors import ArealError, ExitCode, by_kind
from areal.errors import Kind as ErrorKind
from areal.local.supervisor import RunOutcome, RunResult
from areal.processes.exits import exit_code_of
from areal.processes.logfile import last_words

_LINES = 12  # of the log; the path of all of it is told, too
_FIX = re.compile(r"^\s*fix: (.+)$")

_OWN = re.compile(r"\b(?:config|data|infra|bug) error: (.+)$")

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


def explain(outcome: RunOutcome, logs: Path) -> ArealError:
    """The error of a failed run, with the exit code that its failed role earned."""
    failed = outcome.failed
    if failed is None:
        error = by_kind(outcome.kind, outcome.reason)
        error.fix = _ADVICE[error.exit_code]
        return error
    path = logs / f"{failed.name}.log"
    excerpt = last_words(path, 200)
    last = excerpt.lines
    code = failed.last_exit.code if failed.last_exit else int(ExitCode.BUG)
    own = exit_code_of(code)
    shown = "\n".join(f"    {line}" for line in last[-_LINES:]) or "    (nothing was logged)"
    which = f" (the newest start logged nothing; these are of {excerpt.start})" if excerpt.start else ""
    message = f"{failed.name} failed: {outcome.reason}\n  last lines of {path}{which}:\n{shown}"
    return by_kind(_KINDS[own], message, fix=_own_fix(last) or _ADVICE[own])


def sentence(outcome: RunOutcome, logs: Path) -> str:
    """Why a run failed, in one line: what its failed role said itself, else how it ended; nothing for others."""
    if outcome.ended is not RunResult.FAILED:
        return ""
    if outcome.failed is None:
        return outcome.reason
    name, how = outcome.failed.name, outcome.reason
    said = [match[1] for line in last_words(logs / f"{name}.log", 200).lines if (match := _OWN.search(line))]
    return f"{name}: {said[-1]} ({how})" if said else f"{name}: {how}"


def _own_fix(lines: Sequence[str]) -> str:
    """The fix that the role itself printed last."""
    fixes = [match[1] for line in lines if (match := _FIX.match(line))]
    return fixes[-1] if fixes else ""
