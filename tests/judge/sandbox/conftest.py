"""Real sandboxes of each tier that this machine offers, one a test module."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig
from areal_judge.sandbox.values import Tier

DRIVERS = Path(__file__).parent


async def _sandbox(tier: Tier) -> AsyncIterator[Sandbox]:
    config = SandboxConfig(
        highest_tier=tier, min_tier=Tier.T0, zygotes=1, max_runs=6, drivers=("talking_driver",),
        driver_paths=(str(DRIVERS),),
    )  # fmt: skip
    made = Sandbox(config)
    await made.start()
    try:
        if made.powers.tier < tier:
            pytest.skip(f"this machine offers {made.powers.tier.name} only")
        yield made
    finally:
        await made.stop()


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=[Tier.T2, Tier.T3], ids=["T2", "T3"])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """A sandbox of either tier."""
    async for made in _sandbox(request.param):
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def namespaced() -> AsyncIterator[Sandbox]:
    """A sandbox whose cells have files and processes."""
    async for made in _sandbox(Tier.T3):
        yield made
