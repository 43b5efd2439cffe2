"""The two services that every role serves about itself: its waits and its progress."""

import time
from typing import Any, TypeAlias

import grpc

from areal.observe.waits import ProgressCounter, Wait, WaitRegistry
from areal.v1 import common_pb2 as common
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.v1 import rollout_pb2 as rollout

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


def wait_to_wire(wait: Wait) -> rollout.Wait:
    """The wire form of a wait."""
    return rollout.Wait(
        name=wait.name, owner=wait.owner, waits_for=wait.waits_for, age_s=wait.age_s, deadline_s=wait.deadline_s
    )


def beat(node: str, incarnation: str, progress: int, *, fence: int = 0) -> common.Beat:
    """A proof of life. `monotonic_s` shows how long it travelled, to a reader on the same machine."""
    return common.Beat(node=node, incarnation=incarnation, fence=fence, monotonic_s=time.monotonic(), progress=progress)


class WaitsService(operations_grpc.WaitsServicer):
    """Answers who waits for what, since when."""

    def __init__(self, role: str, waits: WaitRegistry) -> None:
        self._role = role
        self._waits = waits

    async def ListWaits(self, request: operations.ListWaitsRequest, context: Context) -> operations.ListWaitsResponse:
        return operations.ListWaitsResponse(role=self._role, waits=[wait_to_wire(wait) for wait in self._waits.list()])


class ProgressService(operations_grpc.ProgressServicer):
    """Answers how much work is done and since when there is no progress."""

    def __init__(self, role: str, progress: ProgressCounter) -> None:
        self._role = role
        self._progress = progress

    async def GetProgress(
        self, request: operations.GetProgressRequest, context: Context
    ) -> operations.GetProgressResponse:
        return operations.GetProgressResponse(
            role=self._role,
            policy_id=self._progress.policy_id,
            progress=self._progress.value,
            since_progress_s=self._progress.since_s(),
            doing=self._progress.doing,
        )
