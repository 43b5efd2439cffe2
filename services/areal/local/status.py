"""State of a running job, put together once a second from what its roles say and what its directory holds.

Owns since when a role has not answered or is not ready, and the live file, from which `areal status`, `areal why` and
the page know the run. A role that does not answer is shown so, never waited for; a file that can't be written costs
nothing but itself.
"""

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import psutil

from areal.net.channel import connect
from areal.net.status import idle_from_wire, kind_from_wire
from areal.observe.causes import why
from areal.observe.live import Idle, Live, LiveRole, LiveWait, RolloutFlow, free_bytes, write_live
from areal.processes.core import ChildPhase
from areal.record.run_rows import HeldOut, Records, Step
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc

_ASK_S = 1.0  # deadline of one question: a loaded role answers later than this now and then, and is asked again
_RATE_WINDOW_S = 10.0  # tokens per second are a mean over this time
_NEWEST_STEPS = 10  # of which speeds are means
_STOPPED = ("T", "t")  # states in /proc
_ODD_WAIT_S = 3.0  # a wait of this age, or a silence, is worth a look at the processes


@dataclass(frozen=True)
class RunView:
    """A run at one moment, with its curves."""

    live: Live
    steps: Sequence[Step] = ()  # the newest ones
    earlier: Sequence[float] = ()  # rewards, or losses of a supervised training, of the steps before them
    held_out: Sequence[HeldOut] = ()

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
    def training_tps(self) -> float:
        """Tokens in the loss per second of the newest steps."""
        recent = [step for step in self.steps[-_NEWEST_STEPS:] if step.seconds > 0]
        spent = sum(step.seconds for step in recent)
        return sum(step.trained_tokens for step in recent) / spent if spent else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Seconds to the last step at the speed of the newest steps; None while that is unknown."""
        recent = self.steps[-_NEWEST_STEPS:]
        if len(recent) < 2 or recent[-1].at <= recent[0].at:
            return None
        each = (recent[-1].at - recent[0].at) / (len(recent) - 1)
        return each * max(0, self.live.max_steps - self.live.step)


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
    resume: str = ""  # command that goes on with it


class StatusSource:
    """Asks everybody and answers with a `RunView`. Keeps its connections; close it when done.

    Args:
        roles: the roles as their supervisor sees them.
        path: of the live file.
    """

    def __init__(
        self,
        facts: RunFacts,
        roles: Callable[[], Sequence[LiveRole]],
        path: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._facts = facts
        self._roles = roles
        self._path = path
        self._clock = clock
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._tokens = Rate()
        self._answered: dict[str, float] = {}
        self._ready: dict[str, tuple[int, float]] = {}  # role → process that was ready, when last
        self._idle: Idle | None = None
        self._idle_since = 0.0
        self._began = psutil.Process().create_time()

    @property
    def generation_tps(self) -> float:
        """Tokens generated per second, from the first to the last."""
        return self._tokens.mean

    async def view(self) -> RunView:
        """One picture, taken now; the live file has it too."""
        records = self._facts.records.refresh()
        asked = asyncio.gather(*(self._ask(role) for role in self._roles()))
        status, roles = await asyncio.gather(self._rollout(), asked)
        live = self._live(status, roles)
        seen = replace(live, alive=True, disk_free=free_bytes(self._path), place=str(self._path.parent))
        live = replace(live, cause=why(seen))
        with contextlib.suppress(OSError):
            write_live(self._path, live)
        return RunView(live, records.steps, records.earlier, records.held_out)

    async def close(self) -> None:
        """Drop the connections."""
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))

    def _live(self, status: rollout.GetRolloutStatusResponse | None, roles: Sequence[LiveRole]) -> Live:
        facts, now = self._facts, self._clock()
        idle = idle_from_wire(status) if status else None
        if (idle and idle.cause) != (self._idle and self._idle.cause):
            self._idle_since = now
        self._idle = idle
        odd = any(role.silent_s > 0 or any(wait.age_s > _ODD_WAIT_S for wait in role.waits) for role in roles)
        if status is None or idle or status.stalled or odd:  # a run that goes on costs no look at its processes
            held = stopped({role.pid for role in roles if role.pid})
            roles = [replace(role, stopped=held.get(role.pid, 0)) for role in roles]
        live = Live(
            at=time.time(),
            pid=os.getpid(),
            pid_began=self._began,
            step=facts.records.steps[-1].step + 1 if facts.records.steps else 0,
            max_steps=facts.max_steps,
            roles=roles,
            name=facts.name,
            max_staleness=facts.max_staleness,
            elapsed_s=now - facts.started,
            base_urls=facts.base_urls,
            resume=facts.resume,
        )
        if status is None:
            return live
        return replace(
            live,
            max_steps=status.max_steps or facts.max_steps,
            policy=status.served_policy_id,
            idle=idle,
            idle_s=now - self._idle_since if idle else 0.0,
            batch_waits=status.batch_waits,
            stalled=status.stalled,
            stalled_by=kind_from_wire(status.stalled_by),
            flow=RolloutFlow(
                status.leased,
                status.complete_waiting,
                status.reserved_bytes,
                status.budget_bytes,
                dict(status.tombstones),
                dict(status.episode_ends),
                dict(status.token_fates),
            ),
            generation_tps=self._tokens.at(now, status.tokens_total),
        )

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

    async def _ask(self, role: LiveRole) -> LiveRole:
        """The role with what it says of itself, and since when it does not."""
        address = self._facts.addresses.get(role.name)
        said = None
        if address is not None and role.phase in (ChildPhase.STARTING, ChildPhase.READY, ChildPhase.DRAINING):
            said = await self._say(role, address)
        now = self._clock()
        if said is not None or address is None or role.phase not in (ChildPhase.READY, ChildPhase.DRAINING):
            self._answered[role.name] = now
        if role.phase == ChildPhase.READY:
            self._ready[role.name] = (role.pid, now)
        pid, when = self._ready.get(role.name, (0, now))
        unready = role.phase == ChildPhase.STARTING and pid == role.pid
        silent_s = now - self._answered.setdefault(role.name, now)
        return replace(said or role, silent_s=silent_s, unready_s=now - when if unready else None)

    async def _say(self, role: LiveRole, address: str) -> LiveRole | None:
        channel = self._channel(address)
        try:
            waits, progress = await asyncio.gather(
                operations_grpc.WaitsStub(channel).ListWaits(operations.ListWaitsRequest(), timeout=_ASK_S),
                operations_grpc.ProgressStub(channel).GetProgress(operations.GetProgressRequest(), timeout=_ASK_S),
            )
        except grpc.aio.AioRpcError:
            return None
        return replace(
            role,
            doing=progress.doing,
            policy=progress.policy_id,
            waits=[LiveWait(wait.name, wait.waits_for, wait.age_s, wait.deadline_s) for wait in waits.waits],
        )

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = connect(address, self._facts.token)
        return self._channels[address]


def stopped(roots: Collection[int], proc: Path = Path("/proc")) -> dict[int, int]:
    """Of each root whose family holds a process stopped by SIGSTOP or a debugger: its pid, the root's own first."""
    parents: dict[int, int] = {}
    found: list[int] = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it ended meanwhile
        parents[int(entry.name)] = int(parent)
        if state in _STOPPED:
            found.append(int(entry.name))
    held: dict[int, int] = {}
    for pid in found:
        root = pid
        while root and root not in roots:
            root = parents.get(root, 0)
        if root and held.get(root) != root:
            held[root] = pid
    return held
