"""Service stack of boxes, built and ended together: a sandbox of its own, and the registry over it.

Of its own, so that boxes, which stay, never take a place from programs that are judged.
"""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from areal_judge.boxes.driver import DRIVER
from areal_judge.boxes.registry import BoxBounds, BoxRegistry
from areal_judge.boxes.service import BoxesService
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig
from areal_judge.sandbox.values import Tier

_MOST_ZYGOTES = 8
_CELLS_A_ZYGOTE = 400  # fewer than the users that a zygote has for them


@dataclass(frozen=True)
class BoxSettings:
    """What to build."""

    bounds: BoxBounds = field(default_factory=BoxBounds)
    min_tier: Tier = Tier.T3  # a box forks, executes and writes files: lower tiers can't have any


@dataclass(frozen=True)
class BoxStack:
    """The parts that others use."""

    sandbox: Sandbox
    registry: BoxRegistry
    service: BoxesService


@contextlib.asynccontextmanager
async def box_stack(settings: BoxSettings) -> AsyncIterator[BoxStack]:
    """Starts it; afterwards nothing of it is left.

    Raises:
        ConfigError: the machine is below the tier; says what is missing.
        InfraError: the sandbox does not start.
    """
    boxes = settings.bounds.boxes
    wanted = max(min(_MOST_ZYGOTES, os.cpu_count() or 1), -(-boxes // _CELLS_A_ZYGOTE))
    config = SandboxConfig(
        min_tier=max(settings.min_tier, Tier.T3), zygotes=wanted, spares=4, drivers=(DRIVER,), max_runs=boxes
    )
    sandbox = Sandbox(config)
    registry = BoxRegistry(sandbox, settings.bounds)
    try:
        await sandbox.start()
        yield BoxStack(sandbox, registry, BoxesService(registry, sandbox))
    finally:
        await registry.stop()
        await sandbox.stop()
