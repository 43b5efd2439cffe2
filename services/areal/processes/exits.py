"""Exit codes and the errors behind them: how a process ended, as others are told.

Exit codes are `areal.errors.ExitCode`: done, drained, refused for good, restart. A negative code is a signal, as
`subprocess` reports it; 126 and 127 are a command that can't be started. torchrun answers 1 whatever its rank answered,
so its own report is read from the log.

A code says which kind of error it was. The error itself is left in a file that the parent named, so that it can raise
it as its own, and of a container in the termination message, whose text Kubernetes keeps in the pod's status.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import orjson

from areal.errors import ArealError, ExitCode, Kind, by_kind

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
    """One exit. `code` is the role's own, `reason` is for people."""

    code: int
    verdict: ExitVerdict
    reason: str


def rank_code(code: int, tail: Sequence[str]) -> int:
    """The code of the rank that failed first, when `tail` (last log lines) holds torchrun's report; else `code`."""
    if code != 1:
        return code
    codes = [int(match[1]) for line in tail if (match := _RANK_REPORT.search(line))]
    return codes[-1] if codes else code  # the root cause is reported last


def classify(code: int, tail: Sequence[str] = ()) -> ProcessExit:
    """Verdict on the exit `code` of a child that nobody asked to stop."""
    code = rank_code(code, tail)
    if code == ExitCode.DONE:
        return ProcessExit(code, ExitVerdict.COMPLETE, "complete")
    verdict = ExitVerdict.REFUSED if code in _NEVER_AGAIN else ExitVerdict.RESTART
    return ProcessExit(code, verdict, describe(code))


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
    if code < 0:
        return f"killed by {_signal_name(-code)}"
    return words.get(code, f"exit {code}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
    """Leave the error for the parent, if it asked."""
    if path := os.environ.get(ERROR_FILE):
        text = {"kind": error.kind.value, "message": error.message, "fix": error.fix}
        Path(path).write_bytes(orjson.dumps(text))


def read_error(path: Path) -> ArealError | None:
    """Error that a child left; None when it left none that can be read."""
    try:
        text = orjson.loads(path.read_bytes())
        return by_kind(Kind(text["kind"]), str(text["message"]), fix=str(text["fix"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
