"""What a program finds in its interpreter of other runs: by the frames above its own, and what they refer to."""

from __future__ import annotations

import asyncio
import resource

import pytest
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig
from areal_judge.sandbox.values import Limits, ProgramRun, PythonScript, Tier

pytestmark = pytest.mark.component

_WALK = """
import sys, types
found, seen = [], set()
def walk(value, depth):
    if depth > 12 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        if "wall_s" in value and value["wall_s"] != 9.0:
            found.append(value)
        parts = [*value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = value
    elif isinstance(value, (types.ModuleType, type, str, bytes, int, float)):
        return
    else:
        parts = [getattr(value, "__dict__", None), getattr(value, "__self__", None)]
        if type(value).__name__ == "Scratch" and value._left:
            found.append(value._left)
    for part in list(parts):
        if part is not None:
            walk(part, depth + 1)
frame = sys._getframe()
while frame is not None:
    if frame.f_code.co_name != "<module>":
        walk(dict(frame.f_locals), 0)
    frame = frame.f_back
print(found or "nothing")
"""
_OTHER = "open('left', 'w').write('x' * 9000) if WRITES else None\nimport time\ntime.sleep(LONG)"


def _other(long_s: float, writes: bool) -> ProgramRun:
    source = f"LONG, WRITES = {long_s}, {writes}\n{_OTHER}"
    return ProgramRun(PythonScript(source), limits=Limits(wall_s=7.25), keep=("secret",) if writes else ())


@pytest.mark.parametrize("tier", [Tier.T2, Tier.T3])
def test_no_order_or_report_of_another_run_is_in_a_programs_interpreter(tier: Tier) -> None:
    async def said() -> list[bytes]:
        sandbox = Sandbox(SandboxConfig(highest_tier=tier, zygotes=1, spares=1, max_runs=4, drivers=()))
        await sandbox.start()
        try:
            if sandbox.powers.tier is not tier:
                pytest.skip(f"this machine offers {sandbox.powers.tier.name}")
            writes = tier is Tier.T3
            await asyncio.gather(*(sandbox.run(_other(0.0, writes)) for _ in range(3)))
            neighbours = [asyncio.create_task(sandbox.run(_other(1.0, writes))) for _ in range(2)]
            await asyncio.sleep(0.2)
            walk = ProgramRun(PythonScript(_WALK), limits=Limits(wall_s=9.0), keep=("own",) if writes else ())
            ended = [await sandbox.run(walk) for _ in range(4)]
            await asyncio.gather(*neighbours)
            return [one.stdout + one.stderr for one in ended]
        finally:
            await sandbox.stop()

    assert asyncio.run(said()) == [b"nothing\n"] * 4


def test_a_program_that_crashes_is_handed_to_no_handler_of_the_machine() -> None:
    async def said() -> bytes:
        sandbox = Sandbox(SandboxConfig(zygotes=1, spares=1, max_runs=1, drivers=()))
        await sandbox.start()
        try:
            return (await sandbox.run(ProgramRun(PythonScript("import resource\nprint(resource.getrlimit(4))")))).stdout
        finally:
            await sandbox.stop()

    most = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
    assert asyncio.run(said()) == f"{most, most}\n".encode()
