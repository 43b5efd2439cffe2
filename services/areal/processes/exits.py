"""Exit codes and the errors behind them: how a process ended, as others are told.

Exit codes are `areal.errors.ExitCode`: done, drained, refused for good, restart. A negative code is a signal, as
`subprocess` reports it; 126 and 127 are a command that can't be started. torchrun answers 1 whatever its rank answered,
so its own report is read from the log.

A code says which kind of error it was. The error itself is left in a file that the parent named, so that it can raise
it as its own, and of a container in the termination message, whose text Kubernetes keeps in the pod's status.
"""

import contextlib
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import orjson

from areal.errors import ArealError, Cause, ExitCode, Kind, by_kind

SIGNALLED = 128  # an exit code above it is a signal, as shells have it
_NAMED = re.compile(r" \[([a-z-]+)\]$")
_RANK_REPORT = re.compile(r"exitcode\s*:\s*(-?\d+)")  # in torchrun's "Root Cause (first observed failure)" block
_NOT_STARTED = (126, 127)
_NEVER_AGAIN = (ExitCode.CONFIG, ExitCode.DATA, *_NOT_STARTED)


class ExitVerdict(StrEnum):
    """What a supervisor does about an exit."""

    COMPLETE = "complete"
    REFUSED = "refused"  # the same start would end the same way
    RESTART = "restart"


@dataclass(frozen=True)
class ProcessExit:
    """One exit. `code` is the role's own; `reason` and `fix` are for people, its last error's if it left one."""

    code: int
    verdict: ExitVerdict
    reason: str
    cause: Cause = Cause.ROLE_ENDED
    fix: str = ""

    def named(self, reason: str) -> str:
        """`reason`, which says this and maybe what follows, with the cause's identifier: as a condition shows it."""
        return f"{reason or self.reason} [{self.cause}]"


def cause_in(message: str) -> Cause | None:
    """Identifier at the end of a termination message's first line, where `ProcessExit.named` writes it."""
    found = _NAMED.search(message.partition("\n")[0])
    try:
        return Cause(found[1]) if found else None
    except ValueError:
        return None


def rank_code(code: int, tail: Sequence[str]) -> int:
    """The code of the rank that failed first, when `tail` (last log lines) holds torchrun's report; else `code`."""
    if code != 1:
        return code
    codes = [int(match[1]) for line in tail if (match := _RANK_REPORT.search(line))]
    return codes[-1] if codes else code  # the root cause is reported last


_HEADLINE = 300  # characters of an error's first line: what users raise may be long


def classify(code: int, tail: Sequence[str] = (), error: ArealError | None = None) -> ProcessExit:
    """Verdict on the exit `code` of a child that nobody asked to stop, and that left `error`."""
    if (code := rank_code(code, tail)) == ExitCode.DONE:
        return ProcessExit(code, ExitVerdict.COMPLETE, "complete", Cause.COMPLETE)
    verdict = ExitVerdict.REFUSED if code in _NEVER_AGAIN else ExitVerdict.RESTART
    if error is not None:
        return ProcessExit(code, verdict, error.message.partition("\n")[0][:_HEADLINE], error.cause, error.fix)
    return ProcessExit(code, verdict, describe(code), _cause_of(code), _FIXES.get(_cause_of(code), ""))


def _cause_of(code: int) -> Cause:
    """Cause of an exit that left no error."""
    if code < 0:
        return Cause.ROLE_KILLED
    if code in _NOT_STARTED:
        return Cause.CONFIG
    try:
        return _OF_CODE[ExitCode(code)]
    except (KeyError, ValueError):
        return Cause.ROLE_ENDED


_OF_CODE = {
    ExitCode.CONFIG: Cause.CONFIG, ExitCode.DATA: Cause.DATA, ExitCode.BUG: Cause.BUG, ExitCode.INFRA: Cause.INFRA,
    ExitCode.DRAINED: Cause.ROLE_KILLED,
}  # fmt: skip
_FIXES = {Cause.ROLE_KILLED: "if nobody killed it, the machine had no memory left: `dmesg` says so"}


def asked_to_stop(code: int) -> bool:
    """Whether somebody else than the supervisor asked the child to stop, by a signal for that: it didn't fail."""
    return code in (ExitCode.DRAINED, -signal.SIGTERM, -signal.SIGINT)


def describe(code: int) -> str:
    """An exit code in words."""
    words = {
        int(ExitCode.DONE): "complete",
        int(ExitCode.CONFIG): "exit 64: the job file or an argument is wrong",
        int(ExitCode.DATA): "exit 65: the dataset, model or recipe is wrong",
        int(ExitCode.BUG): "exit 70: an internal error",
        int(ExitCode.INFRA): "exit 75: something outside failed",
        int(ExitCode.DRAINED): "exit 143: asked to stop",
        126: "exit 126: the command can't be executed",
        127: "exit 127: the command was not found",
    }
    if code >= 0:
        return words.get(code, f"exit {code}")
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def exit_code_of(code: int) -> ExitCode:
    """The exit code that a failed run takes from its failed role: whose fault it was survives, the rest is mapped."""
    if code in _NOT_STARTED:
        return ExitCode.CONFIG
    if code in (ExitCode.CONFIG, ExitCode.DATA, ExitCode.BUG, ExitCode.INFRA):
        return ExitCode(code)
    return ExitCode.INFRA if code < 0 or code == ExitCode.DRAINED else ExitCode.BUG


LIMIT_BYTES = 4096
"""Kubernetes cuts there."""

_PATH = Path("/dev/termination-log")


def leave_message(message: str, path: Path | None = None) -> bool:
    """Write `message` where Kubernetes looks for it; False where there is no such place."""
    place = path or Path(os.environ.get("AREAL_TERMINATION_LOG") or _PATH)
    if path is None and place == _PATH and not place.exists():
        return False
    try:
        place.write_bytes(message.encode()[:LIMIT_BYTES])
    except OSError:
        return False
    return True


ERROR_FILE = "AREAL_ERROR_FILE"  # environment variable: where a child writes its error


def write_error(error: ArealError) -> None:
    """Leave the error for the parent, if it asked, and no other process of the child was first."""
    path = Path(os.environ.get(ERROR_FILE, ""))
    with contextlib.suppress(OSError):  # the log has it, too
        if path.name and not (path.exists() and path.stat().st_size):
            told = {"kind": error.kind, "message": error.message, "fix": error.fix, "cause": error.cause}
            path.write_bytes(orjson.dumps(told))


def read_error(path: Path) -> ArealError | None:
    """Error that a child left; None when it left none that can be read."""
    try:
        text = orjson.loads(path.read_bytes())
        kind, cause = Kind(text["kind"]), Cause(text["cause"])
        return by_kind(kind, str(text["message"]), fix=str(text["fix"]), cause=cause)
    except (OSError, ValueError, KeyError, TypeError):
        return None
