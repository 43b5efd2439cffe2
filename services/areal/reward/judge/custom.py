"""A suite's own checker program, in a cell of its own: apart from the program and from the judge.

It is the suite's code, but it reads what a program printed: it may be led astray, and only it.
"""

from __future__ import annotations

from areal.errors import DataError
from areal.reward.judge import codec
from areal.reward.judge.drivers.wire import REQUEST_BYTES
from areal.reward.sandbox.runner import Sandbox
from areal.reward.sandbox.values import Driver, Ending, Limits, Run

MODULE = "areal.reward.judge.drivers.tester"
LIMITS = Limits(wall_s=10.0, cpu_s=10.0)
_ACCEPTED = 0
_REFUSED = frozenset({1, 2})  # testlib: wrong answer, presentation


async def accepts(sandbox: Sandbox, source: str, stdin: bytes, output: bytes, answer: bytes) -> bool:
    """Whether the checker accepts an output.

    Raises DataError when it ends with anything but a verdict, InfraError.
    """
    payload = codec.encode(("checker", source, stdin, output, answer), max_bytes=REQUEST_BYTES)
    async with sandbox.session(Run(Driver(MODULE, payload), limits=LIMITS)) as session:
        ended = await session.finish(LIMITS.wall_s)
    if ended.ending is Ending.EXITED and ended.exit_code == _ACCEPTED:
        return True
    if ended.ending is Ending.EXITED and ended.exit_code in _REFUSED and not ended.stderr.startswith(b"Traceback"):
        return False
    words = ended.stderr[-2000:].decode("utf-8", "replace").strip().splitlines()
    how = f"exit code {ended.exit_code}" if ended.ending is Ending.EXITED else ended.ending.value
    raise DataError(
        f"the custom checker gave no verdict: {how}{': ' + words[-1] if words else ''}",
        fix="end it with 0 (accepted), 1 (wrong) or 2 (presentation)",
    )
