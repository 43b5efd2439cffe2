"""A sandbox with the toolchains of this machine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from areal_judge.judge.drivers import DRIVERS
from areal_judge.judge.languages.discovery import Toolchain, find_toolchains
from areal_judge.judge.languages.preparation import PreparedFiles
from areal_judge.judge.languages.table import LANGUAGES
from areal_judge.judge.languages.toolchains import Toolchains
from areal_judge.judge.values import Submission
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig
from areal_judge.sandbox.values import DEFAULT_LIMITS, Limits, RunEnding, Tier

REQUIRED = ("python", "c", "cpp", "javascript", "bash")  # of the default image: never skipped
Start = Callable[..., Awaitable[RunEnding]]


@pytest.fixture(scope="session")
def found() -> tuple[Toolchain, ...]:
    return find_toolchains()


@pytest.fixture(scope="session")
def store() -> Iterator[PreparedFiles]:
    """Kept between sessions where it can be, since Go's library takes a minute to compile. Go isn't tested without."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    lasting = os.access(cache if cache.exists() else cache.parent, os.W_OK) and not cache.is_relative_to("/tmp")
    made = PreparedFiles(cache / "areal" / "toolchains" if lasting else None)
    yield made
    made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cells(found: tuple[Toolchain, ...], store: PreparedFiles) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(SandboxConfig(zygotes=1, spares=1, drivers=DRIVERS, readable=Toolchains.readable(found, store)))
    await sandbox.start()
    yield sandbox
    await sandbox.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def toolchains(cells: Sandbox, found: tuple[Toolchain, ...], store: PreparedFiles) -> AsyncIterator[Toolchains]:
    made = Toolchains(cells, store=store, found=found, unbounded_memory=True)
    await made.prepare([name for name in LANGUAGES if name != "go" or not store.temporary])
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def start(cells: Sandbox, toolchains: Toolchains, store: PreparedFiles) -> Start:
    """Compiles and runs a program: `await start(language, source, stdin, limits)`."""

    async def go(language: str, source: str, stdin: bytes = b"", limits: Limits = DEFAULT_LIMITS) -> RunEnding:
        need(language, toolchains, store)
        compiled = await toolchains.compiled(Submission(source, language))
        assert compiled.ok, compiled.result
        return await cells.run(toolchains.run_of(compiled, stdin, limits))

    return go


def need(language: str, toolchains: Toolchains, store: PreparedFiles) -> None:
    """Skips a test of a language that this machine can't run; those of the default image have to run at T3."""
    toolchain = next(one for one in toolchains.capabilities() if one.language == language)
    reason = toolchain.missing or toolchain.refused
    if reason and (language not in REQUIRED or toolchains.tier < Tier.T3):
        pytest.skip(f"{language}: {reason}")
    if language == "go" and store.temporary:
        pytest.skip("go: no lasting place for its library, which takes a minute to compile")
    assert not reason, f"{language}: {reason}"
