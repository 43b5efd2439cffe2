"""gRPC client of a job's roles: one question or order to one role at a time.

Owns the translation between the wire and the operator's values, the connections and their deadlines. A role that
doesn't answer in time has no report; nobody waits for it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc
from areal.net.channel import connect
from areal.net.status import idle_from_wire
from areal.plan.cluster_names import GRPC_PORT, LAUNCHER_PORT
from areal.processes.service import phase_from_wire
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from areal.values.policy import version_of

from areal_operator.kube.resources import Key
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.observed import ControllerReport, LauncherReport, Pod, Reports, TrainerProgress
from areal_operator.operator.reports.dialer import Dialer
from areal_operator.operator.times import ASK_S, TELL_S

_T = TypeVar("_T")


@dataclass(frozen=True)
class Targets:
    """Whom to ask about a job: the controller's pod, the trainers' pods by index, and the token that opens them."""

    controller: Pod | None
    trainers: tuple[Pod, ...]
    token: str


class Asker:
    """Keeps one connection to each port that it was sent to; `forget` closes a job's."""

    def __init__(self, dialer: Dialer, clock: Callable[[], float]) -> None:
        self._dialer = dialer
        self._clock = clock
        self._channels: dict[Key, dict[tuple[str, int, str], grpc.aio.Channel]] = {}

    async def round(self, key: Key, targets: Targets, last: Reports) -> Reports:
        """Ask everybody at once. Who doesn't answer keeps the last report, which says how old it is."""
        controller, trainer, launchers = await asyncio.gather(
            self._controller(key, targets),
            self._trainer(key, targets),
            asyncio.gather(*(self._launcher(key, targets, pod) for pod in targets.trainers)),
        )
        heard = {pod.uid: report for pod, report in zip(targets.trainers, launchers, strict=True) if report is not None}
        kept = {pod.uid: last.launchers[pod.uid] for pod in targets.trainers if pod.uid in last.launchers}
        return Reports(
            controller=controller or (last.controller if targets.controller is not None else None),
            trainer=trainer or (last.trainer if targets.trainers else None),
            launchers={**kept, **heard},
        )

    async def restart(self, key: Key, pod: Pod, token: str, epoch: int) -> bool:
        """Have a trainer's launcher run its child in `epoch`. False: it refused, or didn't answer."""
        stub = operations_grpc.LauncherStub(self._channel(key, pod, LAUNCHER_PORT, token))
        answer = await _answer(stub.RestartChild(operations.RestartChildRequest(epoch=epoch), timeout=TELL_S))
        return answer is not None and bool(answer.accepted)

    async def drain(self, key: Key, pod: Pod, token: str, grace_s: float) -> bool:
        """Have a trainer's launcher stop its child for good, which saves first."""
        stub = operations_grpc.LauncherStub(self._channel(key, pod, LAUNCHER_PORT, token))
        answer = await _answer(stub.DrainChild(operations.DrainChildRequest(grace_s=grace_s), timeout=TELL_S))
        return answer is not None and bool(answer.accepted)

    async def set_hot(self, key: Key, pod: Pod, token: str, hot: HotFields) -> bool:
        """Have the controller work with these values."""
        stub = rollout_grpc.RolloutStub(self._channel(key, pod, GRPC_PORT, token))
        request = rollout.SetHotFieldsRequest(
            max_steps=hot.max_steps,
            max_staleness=hot.max_staleness,
            max_concurrent_rollouts=hot.max_concurrent_rollouts,
        )
        return await _answer(stub.SetHotFields(request, timeout=TELL_S)) is not None

    async def forget(self, key: Key) -> None:
        """Close a job's connections."""
        await asyncio.gather(*(channel.close() for channel in self._channels.pop(key, {}).values()))

    async def keep_only(self, key: Key, targets: Targets) -> None:
        """Close connections to pods that are no more."""
        kept = {
            self._address(key, pod, port, targets.token)
            for pod in (*targets.trainers, *((targets.controller,) if targets.controller else ()))
            for port in (GRPC_PORT, LAUNCHER_PORT)
        }
        channels = self._channels.get(key, {})
        for address in [address for address in channels if address not in kept]:
            await channels.pop(address).close()

    async def _controller(self, key: Key, targets: Targets) -> ControllerReport | None:
        if targets.controller is None:
            return None
        stub = rollout_grpc.RolloutStub(self._channel(key, targets.controller, GRPC_PORT, targets.token))
        answer = await _answer(stub.GetRolloutStatus(rollout.GetRolloutStatusRequest(), timeout=ASK_S))
        return None if answer is None else controller_report(answer, self._clock())

    async def _trainer(self, key: Key, targets: Targets) -> TrainerProgress | None:
        first = next((pod for pod in targets.trainers if pod.index == 0), None)
        if first is None:
            return None
        stub = operations_grpc.TrainerControlStub(self._channel(key, first, GRPC_PORT, targets.token))
        answer = await _answer(stub.GetTrainerStatus(operations.GetTrainerStatusRequest(), timeout=ASK_S))
        if answer is None:
            return None
        said = answer
        return TrainerProgress(said.step, said.checkpoint_step, said.checkpoint_at, self._clock(), said.max_steps)

    async def _launcher(self, key: Key, targets: Targets, pod: Pod) -> LauncherReport | None:
        stub = operations_grpc.LauncherStub(self._channel(key, pod, LAUNCHER_PORT, targets.token))
        answer = await _answer(stub.GetChildStatus(operations.GetChildStatusRequest(), timeout=ASK_S))
        return None if answer is None else launcher_report(answer, self._clock())

    def _address(self, key: Key, pod: Pod, port: int, token: str) -> tuple[str, int, str]:
        host, dialled = self._dialer(*key, pod, port)
        return host, dialled, token

    def _channel(self, key: Key, pod: Pod, port: int, token: str) -> grpc.aio.Channel:
        address = self._address(key, pod, port, token)
        channels = self._channels.setdefault(key, {})
        if address not in channels:
            channels[address] = connect(f"{address[0]}:{address[1]}", token)
        return channels[address]


async def _answer(call: Awaitable[_T]) -> _T | None:
    try:
        answer: _T = await call
    except grpc.aio.AioRpcError:
        return None
    return answer


def launcher_report(answer: operations.GetChildStatusResponse, now: float) -> LauncherReport:
    """What a launcher said."""
    return LauncherReport(
        phase=phase_from_wire(answer.phase),
        epoch=answer.epoch,
        awaits_epoch=answer.awaits_epoch,
        exit_code=answer.last_exit_code,
        exit_reason="; ".join(part for part in (answer.last_exit_reason, answer.restart_warning) if part),
        at=now,
    )


def controller_report(answer: rollout.GetRolloutStatusResponse, now: float) -> ControllerReport:
    """What the controller said."""
    served = [server.version for server in answer.fleet if server.live and server.version >= 0]
    policy = answer.served_policy_id
    return ControllerReport(
        hot=HotFields(answer.max_steps, answer.max_staleness, answer.max_concurrent_rollouts),
        step=answer.trainer_step,
        policy_version=version_of(policy) if policy else None,
        oldest_served_version=min(served, default=None),
        reward=_number(answer.reward_mean) if answer.reward_sampled else None,
        staleness=_number(answer.staleness_mean),
        stalled=answer.stalled,
        at=now,
        idle=idle_from_wire(answer),
    )


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
