"""Maps the end of a run to a case's status. Pure."""

from areal_judge.judge.record import LIMITS, head
from areal_judge.judge.values import CaseResult, Flag, Status
from areal_judge.sandbox.values import Ending, RunEnding

_STAYED = (Status.PROTOCOL_VIOLATION, "the program closed its line and went on")


def of_output(ended: RunEnding, *, ignore_exit_code: bool = False) -> tuple[Status, str]:
    """Status and detail of a program that runs to its end; PASSED: its output is to be looked at.

    A run that is cancelled never gets here; `CANCELLED` is a program that had to be ended after it closed its line.
    """
    if ended.ending in LIMITS:
        return LIMITS[ended.ending]
    if ended.ending is Ending.CANCELLED:
        return _STAYED
    if ended.ending is Ending.SIGNALED:
        return Status.RUNTIME_ERROR, f"ended by signal {ended.signal}"
    if ended.exit_code and not ignore_exit_code:
        return Status.RUNTIME_ERROR, _last_words(ended) or f"exit code {ended.exit_code}"
    return Status.PASSED, ""


def of_silence(ended: RunEnding) -> tuple[Status, str, frozenset[Flag]]:
    """The same for a program that ended when an answer was due."""
    status, detail = of_output(ended)
    flags = {Flag.EXITED_EARLY} if ended.ending is Ending.EXITED else set()
    if status is Status.PASSED:
        status, detail = Status.PROTOCOL_VIOLATION, "the program ended instead of answering"
    return status, detail, frozenset(flags | flags_of(ended))


def flags_of(ended: RunEnding) -> frozenset[Flag]:
    """Signs that any ending can show."""
    return frozenset({Flag.OUTPUT_CAP} if ended.ending is Ending.OUTPUT_LIMIT else ())


def case_of(status: Status, detail: str, ended: RunEnding, *, wall_s: float | None = None) -> CaseResult:
    """A case with what its run shows."""
    return CaseResult(
        index=0,
        status=status,
        wall_s=ended.wall_s if wall_s is None else wall_s,
        cpu_s=ended.cpu_s,
        max_rss_bytes=max(ended.max_rss_bytes, ended.memory_peak_bytes or 0),  # the peak has unwaited children
        exit_code=ended.exit_code,
        signal=ended.signal,
        stdout_head=head(ended.stdout),
        stderr_head=head(ended.stderr),
        detail=detail,
    )


def _last_words(ended: RunEnding) -> str:
    """The last line of what a program wrote to its standard error: a Python traceback ends with what was raised."""
    lines = ended.stderr[-4096:].decode("utf-8", "replace").strip().splitlines()
    return f"exit code {ended.exit_code}: {lines[-1][:400]}" if lines else ""
