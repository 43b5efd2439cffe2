"""A judge of this process, for commands that judge here and now: a sandbox, its toolchains, nothing that stays."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from areal_judge.judge.drivers import DRIVERS
from areal_judge.judge.judge import Judge
from areal_judge.judge.languages.discovery import Toolchain, find_toolchains
from areal_judge.judge.languages.preparation import PreparedFiles
from areal_judge.judge.languages.toolchains import Toolchains
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig
from areal_judge.sandbox.values import Powers, Tier


@dataclass(frozen=True)
class Demands:
    """What is asked of the sandbox."""

    min_tier: Tier = Tier.T2
    highest_tier: Tier = Tier.T4  # behave like a machine that offers no more
    allow_unsafe: bool = False
    zygotes: int = 1


@contextlib.asynccontextmanager
async def local_judge(demands: Demands, language: str = "python") -> AsyncIterator[tuple[Judge, Powers]]:
    """A judge and what its sandbox can promise; everything of it has ended afterwards.

    Raises:
        ConfigError: the machine is below the tier, or lacks the language.
        InfraError: the sandbox doesn't start.
    """
    async with contextlib.AsyncExitStack() as stack:
        store: PreparedFiles | None = None
        readable: tuple[str, ...] = ()
        found: tuple[Toolchain, ...] | None = None
        if language != "python":
            store = PreparedFiles()
            stack.callback(store.close)
            found = find_toolchains()
            readable = Toolchains.readable(found, store)
        config = SandboxConfig(
            min_tier=demands.min_tier,
            highest_tier=demands.highest_tier,
            allow_unsafe=demands.allow_unsafe,
            zygotes=demands.zygotes,
            drivers=DRIVERS,
            readable=readable,
        )
        sandbox = Sandbox(config)
        stack.push_async_callback(sandbox.stop)
        await sandbox.start()
        toolchains = None
        if found is not None:
            toolchains = Toolchains(sandbox, store=store, found=found, unbounded_memory=demands.allow_unsafe)
            stack.push_async_callback(toolchains.close)
            await toolchains.prepare([language])
        yield Judge(sandbox, toolchains), sandbox.powers
