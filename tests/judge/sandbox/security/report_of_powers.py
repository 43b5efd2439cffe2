"""Prints what probing found and what a self-test saw, as JSON: run as another user, and inside gVisor.

The argument is the highest tier.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict

from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig
from areal_judge.sandbox.host.selftest import self_test
from areal_judge.sandbox.values import Tier


async def _main() -> None:
    sandbox = Sandbox(SandboxConfig(zygotes=1, highest_tier=Tier[sys.argv[1]]))
    await sandbox.start()
    try:
        tested = [asdict(probe) for probe in await self_test(sandbox, thorough=False)]
        print(json.dumps({"powers": asdict(sandbox.powers), "self_test": tested}))
    finally:
        await sandbox.stop()


if __name__ == "__main__":
    asyncio.run(_main())
