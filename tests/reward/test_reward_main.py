"""The roles as they run: gRPC, health, metrics, a clean end."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from areal.errors import ConfigError, DataError
from areal.method_access import one_token
from areal.net.channel import connect
from areal.plan.context import RoleContext
from areal.plan.resolved import Endpoints, ResolvedJob
from areal.reward import main
from areal.reward.main import RewardService
from areal.spec.job import RLJob
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as pb
from areal.v1 import reward_pb2_grpc as rpc
from support.redis_server import free_port

pytestmark = pytest.mark.component
TOKEN = "a-token"
Started = tuple[rpc.RewardStub, RoleContext, "asyncio.Task[int]"]
Start = Callable[..., Awaitable[Started]]


def context(tmp_path: Path, role: str, recipe: Path | None) -> RoleContext:
    job = RLJob.model_validate(
        {
            "apiVersion": "areal.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "scored"},
            "spec": {
                "model": {"path": "m"},
                "dataset": {"train": {"jsonl": "t.jsonl"}},
                "algorithm": {"name": "GRPO", "batchSize": 2, "maxSteps": 1},
                "reward": {"deadlineSeconds": 0.5, "answerField": "solution"},
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
        recipe_path=recipe,
        dataset=job.spec.dataset,
        endpoints=Endpoints(controller="127.0.0.1:1", redis="127.0.0.1:2"),
        redis_users={},
        ports={},
    )
    return RoleContext(
        resolved, role, 0, free_port(), free_port(), TOKEN, asyncio.Event(), "i", access=one_token(TOKEN)
    )


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    tasks: list[tuple[RoleContext, asyncio.Task[int]]] = []
    channels: list[grpc.aio.Channel] = []

    async def begin(role: str, recipe: Path | None = None) -> Started:
        ctx = context(tmp_path, role, recipe)
        task = asyncio.create_task(main.run(ctx))
        tasks.append((ctx, task))
        channel = connect(f"127.0.0.1:{ctx.port}", TOKEN)
        channels.append(channel)
        stub = rpc.RewardStub(channel)
        await stub.Score(pb.ScoreRequest(), wait_for_ready=True, timeout=20)
        return stub, ctx, task

    yield begin
    for ctx, task in tasks:
        ctx.stop.set()
        await asyncio.wait_for(task, 60)
    for channel in channels:
        await channel.close()


async def test_the_reward_role_offers_exact_and_math_and_ends_cleanly(start: Start, item) -> None:
    stub, ctx, task = await start("reward")
    answer = await stub.Score(
        pb.ScoreRequest(
            items=[
                item("5", "math", solution="5"),
                item("abc", "exact", solution="abc"),
                item("5", "custom", solution="5"),
                item("x", "exact", answer="x"),
                item("abd", "exact", solution="abc"),
            ]
        ),
        timeout=20,
    )
    graded, exact, unknown, missing, wrong = answer.results
    assert (graded.verdict.status, graded.verdict.score) == ("EQUAL", 1.0)
    assert (exact.score, wrong.score) == (1.0, 0.0)
    assert wrong.WhichOneof("outcome") == "score"
    assert unknown.fault.kind == common.FAULT_KIND_CONFIG
    assert missing.fault.kind == common.FAULT_KIND_DATA
    url = f"http://127.0.0.1:{ctx.metrics_port}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=60).read().decode())
    counted = [line for line in text.splitlines() if line.startswith("areal_reward_requests_total")]
    assert any('verdict="equal"' in line and 'verifier="math"' in line and line.endswith(" 1.0") for line in counted)
    assert any('verdict="score"' in line and line.endswith(" 2.0") for line in counted)
    assert any('verdict="fault_data"' in line for line in counted)
    ctx.stop.set()
    assert await asyncio.wait_for(task, 60) == 143


async def test_the_custom_role_scores_by_the_recipe(start: Start, item, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "def reward(prompt, completions, prompt_ids, completion_ids, *, solution, **row):\n"
        "    while completions == 'hang':\n        pass\n"
        "    return completions == solution\n"
    )
    stub, _, _ = await start("reward-custom", recipe)
    items = [item("1", solution="1"), item("hang", solution="1"), item("2", solution="1"), item("1")]
    answer = await stub.Score(pb.ScoreRequest(items=items), timeout=30)
    assert [result.WhichOneof("outcome") for result in answer.results] == ["score", "fault", "score", "fault"]
    assert (answer.results[0].score, answer.results[2].score) == (1.0, 0.0)
    assert "within 0.5 s" in answer.results[1].fault.message
    assert "solution" in answer.results[3].fault.message


async def test_a_call_without_the_token_is_refused(start: Start) -> None:
    _, ctx, _ = await start("reward")
    async with connect(f"127.0.0.1:{ctx.port}", "another") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await rpc.RewardStub(channel).Score(pb.ScoreRequest(), timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_recipe_that_cannot_score_ends_the_role_with_the_reason(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text("import no_such_package\n")
    with pytest.raises(DataError, match="no_such_package"):
        await main.run(context(tmp_path, "reward-custom", recipe))
    with pytest.raises(ConfigError, match="needs a recipe"):
        await main.run(context(tmp_path, "reward-custom", None))


async def test_a_verifier_that_breaks_is_a_bug_of_its_items_only(item) -> None:
    from areal.observe.metrics import RoleMetrics
    from areal.observe.waits import ProgressCounter
    from areal.reward.verifiers.exact import ExactVerifier

    class Broken(ExactVerifier):
        async def score(self, items):
            raise RuntimeError("oops")

    verifiers = {"exact": ExactVerifier("answer"), "broken": Broken("answer")}
    service = RewardService(verifiers, RoleMetrics("reward", "j"), ProgressCounter())
    request = pb.ScoreRequest(items=[item("1", "broken", answer="1"), item("1", "exact", answer="1")])
    broken, fine = (await service.Score(request, None)).results
    assert broken.fault.kind == common.FAULT_KIND_BUG
    assert fine.score == 1.0
