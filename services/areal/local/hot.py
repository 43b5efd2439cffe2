"""Changes of live fields of a run on this machine: one call to its controller, which keeps them through restarts
and `--resume`, until the job file is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from areal.errors import ConfigError
from areal.local.inspect import going_on
from areal.net.channel import connect
from areal.net.status import raise_as
from areal.plan import ResolvedJob, RunLayout
from areal.processes.role import read_token
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc

_TELL_S = 5.0

HOT: Mapping[str, str] = {
    "algorithm.maxSteps": "max_steps",
    "algorithm.maxStaleness": "max_staleness",
    "rollout.maxConcurrentRollouts": "max_concurrent_rollouts",
}
"""Live field → its name in the call."""


def set_hot(run_dir: Path, changes: Mapping[str, Any]) -> dict[str, int]:
    """Tell the controller of the run in `run_dir`; returns all live fields as they are in force then.

    Raises ConfigError when no run goes on there, or when the controller refuses the values.
    """
    for field, value in changes.items():
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise ConfigError(f"{field} is a whole number, not {value!r}", fix=f"write {field}=2")
    return asyncio.run(_tell(RunLayout(run_dir.absolute()), {HOT[field]: value for field, value in changes.items()}))


async def _tell(layout: RunLayout, values: dict[str, int]) -> dict[str, int]:
    going_on(layout)
    controller = ResolvedJob.load(layout.root).endpoints.controller
    if not controller:
        raise ConfigError(f"the run in {layout.root} has no controller", fix="live fields are those of RL jobs")
    async with connect(controller, read_token(layout.token)) as channel:
        stub = rollout_grpc.RolloutStub(channel)
        try:
            answer = await stub.SetHotFields(rollout.SetHotFieldsRequest(**values), timeout=_TELL_S)
        except grpc.aio.AioRpcError as error:
            raise_as(error)
    return {field: getattr(answer, name) for field, name in HOT.items()}
