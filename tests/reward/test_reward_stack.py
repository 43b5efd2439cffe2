"""The whole service on real cells: what the scripted judge stands for, faults of the machine, the role, the command."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from areal.clients.sandbox import SandboxClient, SuiteText
from areal.errors import ConfigError
from areal.net.channel import connect
from areal.observe.metrics import RoleMetrics
from areal.plan.context import RoleContext
from areal.plan.resolved import Endpoints, ResolvedJob
from areal.reward import main
from areal.reward.dispatch.dispatcher import Judging
from areal.reward.dispatch.values import Execution, Ticket
from areal.reward.judge.values import CallCase, CallSuite, Options, Status, StdioSuite, Submission
from areal.reward.sandbox.values import Limits, Run, Script, Tier
from areal.reward.self_test import SelfTest
from areal.reward.serve import ServeOptions, serve
from areal.reward.stack import CodeStack, StackSettings, code_stack
from areal.spec.job import RLJob
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2, sandbox_pb2
from areal.v1 import reward_pb2_grpc as reward_rpc
from areal.v1 import sandbox_pb2_grpc as sandbox_rpc
from support.scripted_judge import SUITE, ScriptedJudge

pytestmark = pytest.mark.component
PYTHON = StackSettings(languages=("python",), slots=2)
ADD = CallSuite("add", (CallCase((1, 2), 3), CallCase((5, -7), -2)))
PROGRAMS = {
    "pass": "print(1)",
    "wrong": "print(2)",
    "time": "while True: pass",
}
IMPATIENT = StdioSuite(SUITE.cases, limits=Limits(wall_s=3.0, cpu_s=0.5))


async def nobody(ready: bool) -> None:
    """Needs no telling."""


@pytest.fixture
async def stack() -> AsyncIterator[CodeStack]:
    async with code_stack(PYTHON, RoleMetrics("reward", "tests"), nobody) as made:
        yield made


def zygotes(before: set[int]) -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.pid not in before]


async def test_the_scripted_judge_stands_for_the_real_one(stack: CodeStack) -> None:
    real: Judging = stack.dispatcher._judge
    for name, program in PROGRAMS.items():
        ours = await ScriptedJudge().judge(Submission(name), IMPATIENT, Options())
        theirs = await real.judge(Submission(program), IMPATIENT, Options())
        assert (theirs.status, theirs.score) == (ours.status, ours.score), name
        assert len(theirs.cases) == len(ours.cases)


async def test_programs_are_judged_and_executed(stack: CodeStack) -> None:
    dispatcher = stack.dispatcher
    good = await dispatcher.judge(Submission("def add(a, b):\n    return a + b\n"), ADD)
    bad = await dispatcher.judge(Submission("def add(a, b):\n    return 3\n"), ADD)
    assert (good.status, good.score, good.cases_passed) == (Status.PASSED, 1.0, 2)
    assert (bad.status, bad.score) == (Status.WRONG_ANSWER, 0.0)
    executed = await dispatcher.execute(Execution("import sys; print(input()); sys.exit(3)", stdin=b"hello\n"))
    assert executed.ended is not None
    assert (executed.status, executed.ended.exit_code) == (Status.RUNTIME_ERROR, 3)
    assert executed.ended.stdout == b"hello\n"
    again = await dispatcher.judge(Submission("def add(a, b):\r\n    return a + b\r\n"), ADD)
    assert again.cached


async def test_a_deadline_ends_a_run_within_moments(stack: CodeStack) -> None:
    suite = StdioSuite(SUITE.cases, limits=Limits(wall_s=60.0, cpu_s=60.0))
    judgement = await stack.dispatcher.judge(
        Submission("while True: pass"), suite, Options(total_s=60), Ticket(deadline=time.time() + 1.0)
    )
    assert (judgement.status, judgement.score) == (Status.DEADLINE_EXCEEDED, None)
    await idle(stack)


async def test_a_cancelled_run_leaves_its_slot(stack: CodeStack) -> None:
    suite = StdioSuite(SUITE.cases, limits=Limits(wall_s=60.0, cpu_s=60.0))
    asking = asyncio.create_task(
        stack.dispatcher.judge(
            Submission("import time; time.sleep(50)"), suite, Options(total_s=60), Ticket("t", request_id="r")
        )
    )
    await running(stack)
    assert stack.dispatcher.cancel("t", "r")
    judgement = await asking
    assert (judgement.status, judgement.score) == (Status.CANCELLED, None)
    await idle(stack)


async def test_a_killed_zygote_is_no_verdict_and_the_next_attempt_counts() -> None:
    before = {child.pid for child in psutil.Process().children()}
    async with code_stack(PYTHON, RoleMetrics("reward", "tests"), nobody) as stack:
        asking = asyncio.create_task(
            stack.dispatcher.judge(Submission("import time; time.sleep(1.5); print(1)"), SUITE)
        )
        await running(stack)
        for zygote in zygotes(before):
            zygote.kill()
        judgement = await asking
        assert (judgement.status, judgement.score, judgement.attempt) == (Status.PASSED, 1.0, 2)
        assert stack.sandbox.counters().zygote_restarts >= 1


async def test_a_zygote_that_is_killed_twice_is_a_fault_without_a_score() -> None:
    before = {child.pid for child in psutil.Process().children()}
    async with code_stack(PYTHON, RoleMetrics("reward", "tests"), nobody) as stack:
        asking = asyncio.create_task(stack.dispatcher.judge(Submission("import time; time.sleep(3); print(1)"), SUITE))
        for attempt in (1, 2):
            await running(stack)
            for zygote in zygotes(before):
                zygote.kill()
            await until(lambda lost=attempt: stack.sandbox.counters().infra_errors >= lost)
            await until(lambda: stack.sandbox.counters().running == 0)
        judgement = await asking
        assert (judgement.status, judgement.score, judgement.retryable) == (Status.SANDBOX_ERROR, None, True)
        async with asyncio.timeout(30):  # the kill may have met a zygote that was just starting
            while (again := await stack.dispatcher.judge(Submission("print(1)"), SUITE)).retryable:
                pass
        assert again.score == 1.0


async def test_a_machine_below_the_tier_is_refused_with_what_it_lacks() -> None:
    settings = StackSettings(min_tier=Tier.T3, highest_tier=Tier.T2, languages=("python",))
    with pytest.raises(ConfigError, match="T2") as refused:
        async with code_stack(settings, RoleMetrics("reward", "tests"), nobody):
            pass
    assert refused.value.fix


async def test_a_leaking_sandbox_is_not_ready_and_judges_nothing(stack: CodeStack) -> None:
    held = await SelfTest(stack.sandbox, stack.dispatcher._judge)()  # type: ignore[arg-type]
    assert (held.passed, held.breach) == (True, False)

    class Leaking:
        powers = stack.sandbox.powers

        async def run(self, run: Run) -> Any:
            return await stack.sandbox.run(Run(Script("print('won: a socket')")))

    stack.readiness._test = SelfTest(Leaking(), stack.dispatcher._judge)  # type: ignore[arg-type]
    assert not await stack.readiness.check()
    assert "a socket" in stack.readiness.words
    judgement = await stack.dispatcher.judge(Submission("print(1)"), SUITE)
    assert (judgement.status, judgement.score) == (Status.REJECTED_TIER, None)
    assert (await stack.dispatcher.execute(Execution("print(1)"))).status is Status.REJECTED_TIER


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not what():  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.01)


def running(stack: CodeStack) -> Awaitable[None]:
    return until(lambda: stack.sandbox.counters().running > 0)


def idle(stack: CodeStack) -> Awaitable[None]:
    return until(lambda: stack.sandbox.counters().running == 0 and stack.dispatcher.scheduler.running == 0)


def context(tmp_path: Path, port: int, **code: Any) -> RoleContext:
    job = RLJob.model_validate(
        {
            "apiVersion": "areal.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "judged"},
            "spec": {
                "model": {"path": "m"},
                "dataset": {"train": {"jsonl": "t.jsonl"}},
                "algorithm": {"name": "GRPO", "batchSize": 2, "maxSteps": 1},
                "reward": {"verifier": "code", "code": code},
            },
        }
    )
    resolved = ResolvedJob(
        job=job,
        uid="u",
        digest=job.digest(),
        run_dir=tmp_path,
        model_path=tmp_path,
        tokenizer_path=tmp_path,
        recipe_path=None,
        dataset=job.spec.dataset,
        endpoints=Endpoints(controller="127.0.0.1:1", redis="127.0.0.1:2"),
        redis_users={},
        ports={},
    )
    return RoleContext(resolved, "reward", 0, port, 0, "a-token", asyncio.Event(), "i")


async def test_the_role_scores_programs_and_serves_the_sandbox(tmp_path: Path, unused_tcp_port: int, item: Any) -> None:
    ctx = context(tmp_path, unused_tcp_port)
    task = asyncio.create_task(main.run(ctx))
    async with connect(f"127.0.0.1:{ctx.port}", ctx.token) as channel:
        stub = reward_rpc.RewardStub(channel)
        offered = await stub.GetRewardCapabilities(
            reward_pb2.GetRewardCapabilitiesRequest(), wait_for_ready=True, timeout=60
        )
        assert (list(offered.verifiers), offered.tier[0]) == (["code", "exact", "math"], "T")
        row = {"entry_point": "add", "kind": "call", "cases": [{"arguments": [1, 2], "expected": 3}]}
        items = [
            item("```python\ndef add(a, b):\n    return a + b\n```", "code", **row),
            item("```python\ndef add(a, b):\n    return a - b\n```", "code", **row),
            item("```python\ndef add(a, b):\n    return a + b\n```", "code", **{**row, "cases": []}),
        ]
        right, wrong, empty = (await stub.Score(reward_pb2.ScoreRequest(items=items), timeout=60)).results
        assert (right.verdict.status, right.verdict.score) == ("PASSED", 1.0)
        assert (wrong.verdict.status, wrong.verdict.score) == ("WRONG_ANSWER", 0.0)
        assert empty.fault.kind == common.FAULT_KIND_DATA
        sandbox = sandbox_rpc.SandboxStub(channel)
        capabilities = await sandbox.Capabilities(sandbox_pb2.CapabilitiesRequest(), timeout=10)
        assert capabilities.ready
    ctx.stop.set()
    assert await asyncio.wait_for(task, 30) == 143


async def test_the_command_serves_both_faces_and_leaves_nothing(tmp_path: Path, unused_tcp_port: int) -> None:
    token = tmp_path / "token"
    command = [sys.executable, "-m", "areal.cli.main", "reward", "serve", "--port", str(unused_tcp_port)]
    command += ["--http-port", "0", "--token-file", str(token), "--slots", "2"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env={**os.environ})
    assert process.stdout is not None
    try:
        said = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        http = said.split("HTTP on ")[1].strip()
        assert token.stat().st_mode & 0o777 == 0o600
        bearer = token.read_text().strip()
        client = SandboxClient(f"127.0.0.1:{unused_tcp_port}", bearer, tenant="t", patience_s=60)
        result = await client.judge(
            "print(1)", SuiteText.of({"kind": "stdio", "cases": [{"stdin": "", "expected": "1"}]})
        )
        assert (result.score, result.status) == (1.0, sandbox_pb2.SANDBOX_STATUS_PASSED)
        await client.close()
        async with httpx.AsyncClient(base_url=http, headers={"Authorization": f"Bearer {bearer}"}) as face:
            assert (await face.get("/readyz")).status_code == 200
            reply = await face.post("/execute", json={"source": "print(6 * 7)"}, timeout=30)
            assert reply.json()["stdout"] == "42\n"
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
    finally:
        process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(process.wait(), 30)
    assert code == 143
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


@pytest.mark.parametrize(("options", "message"), [
    (ServeOptions(stack=StackSettings(min_tier=Tier.T0)), "without a sandbox"),
    (ServeOptions(stack=StackSettings(Tier.T3, highest_tier=Tier.T2, languages=("python",))), "reaches tier T2"),
    (ServeOptions(token_file=Path("/dev/null")), "is empty"),
])  # fmt: skip
async def test_a_service_refuses_to_start_where_it_can_not_promise_what_is_asked(
    options: ServeOptions, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        await serve(options, lambda serving: None)
    assert refused.value.fix
