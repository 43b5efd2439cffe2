"""Reports of a job's roles and orders to them, over gRPC.

Owns the translation between the wire and the operator's values, the connections and their deadlines: a role that
doesn't answer in time has no report, and nobody waits for it. The poller owns one task a job, what each job's roles
said last, and one task an order: a role that can't be reached delays no reconcile, of its own job or of others. It says
when something changed that a decision may hang on; figures that always change are picked up by the next look.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, TypeVar

import grpc
from areal.net.channel import connect
from areal.net.status import idle_from_wire
from areal.plan.cluster_names import GRPC_PORT, LAUNCHER_PORT, service_host
from areal.processes.service import phase_from_wire
from areal.record.episode_ends import wasted_share
from areal.tls import TlsIdentity
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from areal.values.policy import version_of

from areal_operator.kube.resources import Key
from areal_operator.operator.elastic import watched
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.job_state import StepEvidence
from areal_operator.operator.observed import ControllerReport, LauncherReport, Pod, Reports, TrainerProgress
from areal_operator.operator.times import ASK_S, DRAIN_GRACE_S, POLL_S, QUIET_S, TELL_S

_T = TypeVar("_T")
_R = TypeVar("_R", TrainerProgress, ControllerReport)


@dataclass(frozen=True)
class Targets:
    """Whom to ask about a job: the controller's pod, the trainers' pods by index, and the token that opens them."""

    controller: Pod | None
    trainers: tuple[Pod, ...]
    token: str
    own: TlsIdentity | None = None  # the operator's certificate, where the job has TLS


class Asker:
    """Keeps one connection to each port that it was sent to; `forget` closes a job's."""

    def __init__(self, dialer: "Dialer", clock: Callable[[], float]) -> None:
        self._dialer = dialer
        self._clock = clock
        self._channels: dict[Key, dict[tuple[str, int, str], grpc.aio.Channel]] = {}
        self.identities: dict[Key, TlsIdentity | None] = {}

    async def round(self, key: Key, targets: Targets, last: Reports) -> Reports:
        """Ask everybody at once. Who doesn't answer keeps the last report, which says how old it is."""
        controller, trainer, launchers = await asyncio.gather(
            self._controller(key, targets, last.controller),
            self._trainer(key, targets),
            asyncio.gather(*(self._launcher(key, targets, pod) for pod in targets.trainers)),
        )
        heard = {pod.uid: report for pod, report in zip(targets.trainers, launchers, strict=True) if report is not None}
        kept = {pod.uid: last.launchers[pod.uid] for pod in targets.trainers if pod.uid in last.launchers}
        return Reports(
            controller=_dated(controller, last.controller if targets.controller is not None else None),
            trainer=_dated(trainer, last.trainer if targets.trainers else None),
            launchers={**kept, **heard},
            at=self._clock(),
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
            ahead=hot.ahead,
        )
        return await _answer(stub.SetHotFields(request, timeout=TELL_S)) is not None

    async def forget(self, key: Key) -> None:
        """Close a job's connections."""
        self.identities.pop(key, None)
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

    async def _controller(self, key: Key, targets: Targets, last: ControllerReport | None) -> ControllerReport | None:
        if targets.controller is None:
            return None
        stub = rollout_grpc.RolloutStub(self._channel(key, targets.controller, GRPC_PORT, targets.token))
        answer = await _answer(stub.GetRolloutStatus(rollout.GetRolloutStatusRequest(), timeout=ASK_S))
        return None if answer is None else controller_report(answer, self._clock(), last)

    async def _trainer(self, key: Key, targets: Targets) -> TrainerProgress | None:
        first = next((pod for pod in targets.trainers if pod.index == 0), None)
        if first is None:
            return None
        stub = operations_grpc.TrainerControlStub(self._channel(key, first, GRPC_PORT, targets.token))
        answer = await _answer(stub.GetTrainerStatus(operations.GetTrainerStatusRequest(), timeout=ASK_S))
        if answer is None:
            return None
        said, made = answer, None
        if answer.incarnation:
            made = StepEvidence(answer.epoch, f"{answer.incarnation:016x}", answer.steps_made)
        return TrainerProgress(said.step, said.checkpoint_step, said.checkpoint_at, self._clock(), said.max_steps, made)

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
            name = service_host(key[1], key[0], pod.role)  # it dials by address, which no certificate has
            own = partial(self.identities.get, key)
            channels[address] = connect(f"{address[0]}:{address[1]}", token, own=own, name=name)
        return channels[address]


def _dated(new: _R | None, last: _R | None) -> _R | None:
    """An answer with the time since which its step is known; without one, the last."""
    if new is None or last is None:
        return last if new is None else replace(new, since=new.at)
    said = [(each.step, each.evidence if isinstance(each, TrainerProgress) else None) for each in (new, last)]
    return replace(new, since=last.since if said[0] == said[1] else new.at)


async def _answer(call: Awaitable[_T]) -> _T | None:
    try:
        answer: _T = await call
    except grpc.aio.AioRpcError:
        return None
    return answer


def launcher_report(answer: operations.GetChildStatusResponse, now: float) -> LauncherReport:
    """A launcher's status as a value."""
    return LauncherReport(
        phase=phase_from_wire(answer.phase),
        epoch=answer.epoch,
        awaits_epoch=answer.awaits_epoch,
        exit_code=answer.last_exit_code,
        exit_reason="; ".join(part for part in (answer.last_exit_reason, answer.restart_warning) if part),
        at=now,
    )


def controller_report(
    answer: rollout.GetRolloutStatusResponse, now: float, last: ControllerReport | None = None
) -> ControllerReport:
    """A controller's status as a value, behind its last one."""
    served = [server.version for server in answer.fleet if server.live and server.version >= 0]
    silent = {server.server_id: now for server in answer.fleet if not server.live}
    known = last.silent if last is not None else {}
    policy, idle = answer.served_policy_id, idle_from_wire(answer)
    return ControllerReport(
        hot=HotFields(answer.max_steps, answer.max_staleness, answer.max_concurrent_rollouts, answer.ahead),
        step=answer.trainer_step,
        policy_version=version_of(policy) if policy else None,
        oldest_served_version=min(served, default=None),
        reward=_number(answer.reward_mean) if answer.reward_sampled else None,
        staleness=_number(answer.staleness_mean),
        stalled=answer.stalled,
        at=now,
        idle=idle,
        wasted_share=wasted_share(answer.token_fates),
        watch=watched(last.watch if last else None, answer, idle.cause if idle else None, now),
        ledger_silent_s=answer.ledger_silent_s,
        unserved=answer.unserved,
        unserved_s=answer.unserved_s,
        unserved_role=answer.unserved_role,
        silent={server: known.get(server, since) for server, since in silent.items()},
    )


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


Dialer: TypeAlias = Callable[[str, str, Pod, int], tuple[str, int]]
"""(namespace, job, pod, port of the role) → (host, port to dial)."""


def by_pod_ip(namespace: str, job: str, pod: Pod, port: int) -> tuple[str, int]:
    """The pod's own address."""
    return (f"[{pod.ip}]" if ":" in pod.ip else pod.ip), port


log = logging.getLogger(__name__)

_NOTHING = Reports()

Order: TypeAlias = tuple[str, int | str | HotFields]
"""The pod's uid, and what it is to do: an epoch, "drain", or hot fields."""


class Poller:
    """Follows jobs from `follow` to `forget`. All on one event loop."""

    def __init__(
        self,
        asker: Asker,
        on_change: Callable[[Key], None],
        *,
        period_s: float = POLL_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._asker = asker
        self._on_change = on_change
        self._period_s = period_s
        self._sleep = sleep
        self._targets: dict[Key, Targets] = {}
        self._latest: dict[Key, Reports] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._orders: dict[Key, dict[Order, asyncio.Task[None]]] = {}

    def latest(self, key: Key) -> Reports:
        """Newest reports of a job's roles, each with its time."""
        return self._latest.get(key, _NOTHING)

    def follow(self, key: Key, targets: Targets) -> None:
        """Ask these from the next round on."""
        self._targets[key] = targets
        self._asker.identities[key] = targets.own
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._run(key), name=f"reports of {key[0]}/{key[1]}")

    def forget(self, key: Key) -> None:
        """Ask nobody about this job any more."""
        self._targets.pop(key, None)
        self._latest.pop(key, None)
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()
        for order in self._orders.pop(key, {}).values():
            order.cancel()

    async def close(self) -> None:
        """Forget all jobs and close all connections."""
        tasks = [*self._tasks.values(), *(task for orders in self._orders.values() for task in orders.values())]
        for key in list(self._tasks):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    # Orders return at once; one that is under way is not given a second time. What came of it is in the next report.

    def restart(self, key: Key, pod: Pod, epoch: int) -> None:
        """See `Asker.restart`."""
        self._order(key, (pod.uid, epoch), lambda to: self._asker.restart(key, pod, to.token, epoch))

    def drain(self, key: Key, pod: Pod) -> None:
        """See `Asker.drain`."""
        self._order(key, (pod.uid, "drain"), lambda to: self._asker.drain(key, pod, to.token, DRAIN_GRACE_S))

    def set_hot(self, key: Key, hot: HotFields) -> None:
        """See `Asker.set_hot`."""
        targets = self._targets.get(key)
        if targets is not None and (controller := targets.controller) is not None:
            self._order(key, (controller.uid, hot), lambda to: self._asker.set_hot(key, controller, to.token, hot))

    def _order(self, key: Key, what: Order, send: Callable[[Targets], Awaitable[bool]]) -> None:
        targets, orders = self._targets.get(key), self._orders.setdefault(key, {})
        if targets is None or what in orders:
            return
        orders[what] = asyncio.create_task(self._carry(key, what, send(targets)), name=f"order to {key[0]}/{key[1]}")

    async def _carry(self, key: Key, what: Order, sent: Awaitable[bool]) -> None:
        try:
            await sent
        except Exception:  # an order that is lost is given again; an error of ours must be seen
            log.exception("order to %s/%s", *key)
        finally:
            self._orders.get(key, {}).pop(what, None)

    async def _run(self, key: Key) -> None:
        try:
            while True:
                await self._round(key)
                await self._sleep(self._period_s)
        finally:
            with contextlib.suppress(Exception):
                await asyncio.shield(self._asker.forget(key))

    async def _round(self, key: Key) -> None:
        targets, before = self._targets[key], self.latest(key)
        try:
            reports = await self._asker.round(key, targets, before)
            await self._asker.keep_only(key, targets)
        except Exception:  # one job's trouble must not end its reports for ever, and it must be seen
            log.exception("reports of %s/%s", *key)
            return
        if self._targets.get(key) is None:
            return
        self._latest[key] = reports
        if news(before, reports):
            self._on_change(key)


def news(before: Reports, after: Reports) -> bool:
    """Whether a decision may hang on what changed."""
    return _gist(before) != _gist(after)


def _gist(reports: Reports) -> object:
    controller, trainer = reports.controller, reports.trainer
    # each round of silence is news: a claim that steps are made ends once the last one is too long ago
    silences = (reports.at - controller.at, controller.ledger_silent_s, controller.unserved_s) if controller else (0.0,)
    silent_s = max(QUIET_S, *silences)
    return (
        {
            uid: (r.phase, r.epoch, r.awaits_epoch, r.exit_code, reports.at - r.at > QUIET_S)
            for uid, r in reports.launchers.items()
        },
        (controller.hot, controller.stalled, controller.step, silent_s, controller.unheard) if controller else None,
        (trainer.step, trainer.checkpoint_step, trainer.evidence) if trainer else None,
    )
