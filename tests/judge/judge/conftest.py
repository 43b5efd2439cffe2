"""Judges over real cells, in the tiers that this machine has."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from areal_judge.judge.drivers import DRIVERS
from areal_judge.judge.judge import Judge
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig
from areal_judge.sandbox.values import Tier


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[Tier.T3, Tier.T2], ids=["T3", "T2"])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """A started sandbox of exactly this tier; its tests run on the module's event loop."""
    made = Sandbox(SandboxConfig(highest_tier=request.param, zygotes=2, drivers=DRIVERS))
    await made.start()
    if made.powers.tier is not request.param:
        await made.stop()
        pytest.skip(f"this machine offers {made.powers.tier.name}")
    yield made
    await made.stop()


@pytest.fixture(scope="module")
def judge(sandbox: Sandbox) -> Judge:
    return Judge(sandbox)
