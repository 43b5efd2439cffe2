"""One picture of a running job, put together from what the roles say and what the run directory holds.

Used by the live view inside `areal run` and by `areal status` from outside: where a role's phase comes from is given as
a function, everything else is asked over gRPC. A role that does not answer is shown so, never waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import grpc

from areal.errors import Kind
from areal.launch.core import Phase
from areal.net.channel import connect
from areal.net.status import kind_from_wire
from areal.record.run_rows import HeldOut, Records, Step
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc

_ASK_S = 1.0  # deadline of one question: a loaded role answers later than this now and then, and is asked again
_RATE_WINDOW_S = 10.0  # tokens per second are a mean over this time


@dataclass(frozen=True)
class Waiting:
    """A named wait of a role."""

    name: str
    waits_for: str
    age_s: float
    deadline_s: float = 0.0


@dataclass(frozen=True)
class RoleState:
    """A role as its supervisor and it itself describe it."""

    name: str
    phase: Phase
    reason: str = ""
    restarts: int = 0
    pid: int = 0
    answers: bool = False
    doing: str = ""
    policy_id: str = ""
    waits: Sequence[Waiting] = ()
    warning: str = ""  # half of its restarts are used, and for what


@dataclass(frozen=True)
class RunView:
    """Everything the views show."""

    name: str
    max_steps: int
    max_staleness: int
    elapsed_s: float
    steps: Sequence[Step] = ()  # the newest ones
    earlier: Sequence[float] = ()  # rewards, or losses of a supervised training, of the steps before them
    held_out: Sequence[HeldOut] = ()
    roles: Sequence[RoleState] = ()
    rollout: rollout.GetRolloutStatusResponse | None = None  # None: the controller does not answer
    generation_tps: float = 0.0
    training_tps: float = 0.0
    base_urls: Sequence[str] = ()  # of its gateways, for agents

    @property
    def step(self) -> int:
        """Batches trained."""
        return self.steps[-1].step + 1 if self.steps else 0

    @property
    def policy(self) -> str:
        """The PolicyId that servers are asked to hold."""
        return self.rollout.served_policy_id if self.rollout else ""

    @property
    def rewards(self) -> list[float]:
        rewards = [step.reward for step in self.steps if step.reward is not None]
        return [*self.earlier, *rewards] if rewards else []

    @property
    def losses(self) -> list[float]:
        """Of a supervised training."""
        losses = [step.fixed_loss for step in self.steps if step.fixed_loss is not None]
        return [*self.earlier, *losses] if losses else []

    @property
    def stalled(self) -> str:
        return self.rollout.stalled if self.rollout else ""

    @property
    def stalled_by(self) -> Kind:
        """Whose fault a stall is."""
        return kind_from_wire(self.rollout.stalled_by) if self.rollout else Kind.INFRA

    @property
    def restarts(self) -> int:
        return sum(role.restarts for role in self.roles)

    def remaining_s(self, newest: int = 10) -> float | None:
        """Seconds to the last step at the speed of the newest steps; None while that is unknown."""
        recent = self.steps[-newest:]
        if len(recent) < 2 or recent[-1].at <= recent[0].at:
            return None
        each = (recent[-1].at - recent[0].at) / (len(recent) - 1)
        return each * max(0, self.max_steps - self.step)


class Rate:
    """Growth of a counter per second over a window. A counter that falls has started again."""

    def __init__(self, window_s: float = _RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self.grown = 0  # altogether, restarts of the counter included
        self._growing: tuple[float, float] | None = None  # from the first growth to the last
        self._seen: deque[tuple[float, int]] = deque()

    @property
    def mean(self) -> float:
        """Growth per second from the first growth to the last."""
        began, ended = self._growing or (0.0, 0.0)
        return self.grown / (ended - began) if ended > began else 0.0

    def at(self, now: float, total: int) -> float:
        """Tell the counter's value; answers the rate."""
        before = self._seen[-1][1] if self._seen else 0
        if total < before:
            self._seen.clear()
            before = 0
        if total > before:
            began = self._growing[0] if self._growing else self._seen[-1][0] if self._seen else now
            self._growing = (began, now)
        self.grown += total - before
        self._seen.append((now, total))
        while len(self._seen) > 2 and self._seen[0][0] < now - self._window_s:
            self._seen.popleft()
        (begin, first), (end, last) = self._seen[0], self._seen[-1]
        return (last - first) / (end - begin) if end > begin else 0.0


@dataclass
class RunFacts:
    """What does not change while a run goes on. `addresses`: role name → gRPC address of those that serve it."""

    name: str
    token: str
    addresses: Mapping[str, str]
    controller: str
    records: Records
    max_steps: int
    max_staleness: int
    base_urls: Sequence[str] = ()
    started: float = field(default_factory=time.monotonic)


Phases = Callable[[], Awaitable[Sequence[RoleState]]]


class StatusSource:
    """Asks everybody and answers with a `RunView`. Keeps its connections; close it when done."""

    def __init__(self, facts: RunFacts, phases: Phases, clock: Callable[[], float] = time.monotonic) -> None:
        self._facts = facts
        self._phases = phases
        self._clock = clock
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._tokens = Rate()

    @property
    def generation_tps(self) -> float:
        """Tokens generated per second, from the first to the last."""
        return self._tokens.mean

    async def view(self) -> RunView:
        """One picture, taken now."""
        facts = self._facts
        facts.records.refresh()
        status, roles = await asyncio.gather(self._rollout(), self._roles())
        now = self._clock()
        steps = facts.records.steps
        recent = [step for step in steps[-10:] if step.seconds > 0]
        spent = sum(step.seconds for step in recent)
        return RunView(
            name=facts.name,
            max_steps=status.max_steps if status and status.max_steps else facts.max_steps,
            max_staleness=facts.max_staleness,
            elapsed_s=now - facts.started,
            steps=steps,
            earlier=facts.records.earlier,
            held_out=facts.records.held_out,
            roles=roles,
            rollout=status,
            generation_tps=self._tokens.at(now, status.tokens_total) if status else 0.0,
            training_tps=sum(step.trained_tokens for step in recent) / spent if spent else 0.0,
            base_urls=facts.base_urls,
        )

    async def close(self) -> None:
        """Drop the connections."""
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))

    async def _rollout(self) -> rollout.GetRolloutStatusResponse | None:
        if not self._facts.controller:
            return None
        stub = rollout_grpc.RolloutStub(self._channel(self._facts.controller))
        try:
            answer: rollout.GetRolloutStatusResponse = await stub.GetRolloutStatus(
                rollout.GetRolloutStatusRequest(), timeout=_ASK_S
            )
        except grpc.aio.AioRpcError:
            return None
        return answer

    async def _roles(self) -> list[RoleState]:
        return list(await asyncio.gather(*(self._ask(role) for role in await self._phases())))

    async def _ask(self, role: RoleState) -> RoleState:
        address = self._facts.addresses.get(role.name)
        if address is None or role.phase not in (Phase.STARTING, Phase.READY, Phase.DRAINING):
            return role
        channel = self._channel(address)
        try:
            waits, progress = await asyncio.gather(
                operations_grpc.WaitsStub(channel).ListWaits(operations.ListWaitsRequest(), timeout=_ASK_S),
                operations_grpc.ProgressStub(channel).GetProgress(operations.GetProgressRequest(), timeout=_ASK_S),
            )
        except grpc.aio.AioRpcError:
            return role
        return replace(
            role,
            answers=True,
            doing=progress.doing,
            policy_id=progress.policy_id,
            waits=[Waiting(wait.name, wait.waits_for, wait.age_s, wait.deadline_s) for wait in waits.waits],
        )

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = connect(address, self._facts.token)
        return self._channels[address]
