"""The reward role with the verifier code, on real cells."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from areal.method_access import one_token
from areal.net.channel import connect
from areal.plan.context import RoleContext
from areal.plan.resolved import Endpoints, ResolvedJob
from areal.reward import main
from areal.spec.job import RLJob
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2
from areal.v1 import reward_pb2_grpc as reward_rpc

pytestmark = pytest.mark.component


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
    return RoleContext(resolved, "reward", 0, port, 0, "a-token", asyncio.Event(), "i", access=one_token("a-token"))


async def test_the_role_scores_programs(tmp_path: Path, unused_tcp_port: int, item: Any) -> None:
    ctx = context(tmp_path, unused_tcp_port)
    task = asyncio.create_task(main.run(ctx))
    async with connect(f"127.0.0.1:{ctx.port}", ctx.token) as channel:
        stub = reward_rpc.RewardStub(channel)
        row = {"entry_point": "add", "kind": "call", "cases": [{"arguments": [1, 2], "expected": 3}]}
        items = [
            item("```python\ndef add(a, b):\n    return a + b\n```", "code", **row),
            item("```python\ndef add(a, b):\n    return a - b\n```", "code", **row),
            item("```python\ndef add(a, b):\n    return a + b\n```", "code", **{**row, "cases": []}),
        ]
        request = reward_pb2.ScoreRequest(items=items)
        right, wrong, empty = (await stub.Score(request, wait_for_ready=True, timeout=60)).results
        assert (right.verdict.status, right.verdict.score) == ("PASSED", 1.0)
        assert (wrong.verdict.status, wrong.verdict.score) == ("WRONG_ANSWER", 0.0)
        assert empty.fault.kind == common.FAULT_KIND_DATA
    ctx.stop.set()
    assert await asyncio.wait_for(task, 60) == 143
