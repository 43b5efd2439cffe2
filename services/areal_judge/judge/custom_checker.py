"""A suite's own checker program, in a cell of its own: apart from the program and from the judge.

It is the suite's code, but it reads what a program printed: it may be led astray, and only it.
"""

from __future__ import annotations

from dataclasses import dataclass

from areal.errors import DataError

from areal_judge.judge import codec
from areal_judge.judge.drivers import TESTER
from areal_judge.judge.drivers.wire import REQUEST_BYTES
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import Driver, Ending, Limits, ProgramRun

LIMITS = Limits(wall_s=10.0, cpu_s=10.0)
_ACCEPTED = 0
_REFUSED = frozenset({1, 2})  # testlib: wrong answer, presentation


@dataclass(frozen=True)
class Opinion:
    """What a checker says of an output."""

    accepted: bool = False
    trouble: str = ""  # why there is no verdict: it raised, took too long, ended with a code of its own
    exhausted: bool = False  # it ran into a limit, so each further output like this costs as much again


async def accepts(sandbox: Sandbox, source: str, stdin: bytes, output: bytes, answer: bytes) -> Opinion:
    """Whether the checker accepts an output.

    One over which the checker comes to no verdict is refused: a program must not gain by printing it. Only a checker
    that comes to none over the expected answer either is at fault itself; where nothing is expected that can't be seen.

    Raises DataError for a checker at fault, InfraError.
    """
    opinion = await _asked(sandbox, source, stdin, output, answer)
    if opinion.trouble and answer.strip():
        of_answer = await _asked(sandbox, source, stdin, answer, answer)
        if of_answer.trouble:
            raise DataError(
                f"the custom checker gave no verdict: {of_answer.trouble}",
                fix="end it with 0 (accepted), 1 (wrong) or 2 (presentation)",
            )
    return opinion


async def _asked(sandbox: Sandbox, source: str, stdin: bytes, output: bytes, answer: bytes) -> Opinion:
    payload = codec.encode(("checker", source, stdin, output, answer), max_bytes=REQUEST_BYTES)
    async with sandbox.session(ProgramRun(Driver(TESTER, payload), limits=LIMITS)) as session:
        ended = await session.finish(LIMITS.wall_s)
    if ended.ending is Ending.EXITED and ended.exit_code == _ACCEPTED:
        return Opinion(accepted=True)
    if ended.ending is Ending.EXITED and ended.exit_code in _REFUSED and not ended.stderr.startswith(b"Traceback"):
        return Opinion()
    words = ended.stderr[-2000:].decode("utf-8", "replace").strip().splitlines()
    ended_itself = ended.ending in (Ending.EXITED, Ending.SIGNALED)
    how = f"exit code {ended.exit_code}" if ended.ending is Ending.EXITED else ended.ending.value
    return Opinion(trouble=f"{how}{': ' + words[-1] if words else ''}", exhausted=not ended_itself)
