"""The role `boxes` as it runs: it serves boxes until it is asked to stop, and then nothing of them is left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from areal.clients.boxes import BoxClient
from areal.errors import ConfigError, ExitCode, InfraError
from areal.method_access import one_token
from areal.net.channel import connect
from areal.observe.waits import WaitRegistry
from areal.plan.cluster_names import Role
from areal.plan.context import RoleContext
from areal.plan.resolved import Endpoints, ResolvedJob
from areal.spec.job import RLJob
from areal.v1 import boxes_pb2, boxes_pb2_grpc
from areal_judge.boxes import main
from boxes.conftest import TOKEN
from support.redis_server import free_port

pytestmark = pytest.mark.component


def context(root: Path) -> RoleContext:
    spec = {
        "model": {"path": "m"},
        "dataset": {"train": {"jsonl": "t.jsonl"}},
        "algorithm": {"name": "GRPO", "batchSize": 2, "maxSteps": 1},
        "rollout": {"boxes": {"maxConcurrent": 1}},
    }
    job = RLJob.model_validate(
        {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "boxed"}, "spec": spec}
    )
    resolved = ResolvedJob(
        job=job,
        uid="u",
        digest=job.digest(),
        run_dir=root,
        model_path=root,
        tokenizer_path=root,
        dataset=job.spec.dataset,
        endpoints=Endpoints(controller="127.0.0.1:1", redis=None),
        ports={},
    )
    return RoleContext(
        resolved, Role.BOXES, 0, free_port(), free_port(), TOKEN, asyncio.Event(), "i", access=one_token(TOKEN)
    )


async def test_the_role_serves_as_many_boxes_as_the_job_asks_for_and_ends_them_with_itself(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    address = f"127.0.0.1:{ctx.port}"
    client = BoxClient(address, TOKEN, waits=WaitRegistry("test"))
    async with connect(address, TOKEN) as channel:
        role = asyncio.create_task(main.run(ctx))
        stub = boxes_pb2_grpc.BoxesStub(channel)
        up = asyncio.ensure_future(stub.CountBoxes(boxes_pb2.CountBoxesRequest(), wait_for_ready=True, timeout=60))
        await asyncio.wait([role, up], return_when=asyncio.FIRST_COMPLETED)
        if role.done() and isinstance(role.exception(), ConfigError):
            up.cancel()
            await client.close()
            pytest.skip(f"this machine has no boxes: {role.exception()}")
        assert (await up).capacity == 1
    async with client.box(work_s=600) as box:
        assert (await box.bash("echo up", timeout_s=120)).output == b"up\n"
        with pytest.raises(InfraError):
            async with box.another(work_s=600, patience_s=0.2):
                pytest.fail("there is room for one")
        ctx.stop.set()
        assert await role == ExitCode.DRAINED
    await client.close()
