"""The run of a job whose pods are fake: steps, checkpoints and what its roles answer to operators.

Outlives its pods, as a run's volume does. Its controller and its rank 0 speak the real protos; a test says how fast it
trains, when a trainer dies and how long a checkpoint takes. It never trains while the gang is not whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from areal.net.status import idle_to_wire
from areal.observe.live import IdleCause
from areal.plan.resolved import ResolvedJob
from areal.processes.core import ChildPhase
from areal.spec.numbers import ahead
from areal.v1 import generation_pb2 as generation
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from support.scripted_child import ScriptedChild

CHECKPOINT_EVERY = 5  # steps


@dataclass
class Hot:
    """Hot fields in force."""

    max_steps: int
    max_staleness: int
    max_concurrent_rollouts: int
    ahead: int


@dataclass
class ScriptedRun:
    """One job's run. Fields may be written by a test at any time."""

    namespace: str
    job: str
    pace_s: float = 0.1
    """Of one step."""
    paused: bool = False
    """Trains no step, as a job that hangs."""
    stalled: str = ""
    """What the controller says is in its way."""
    hold_drain: bool = False
    """A drained trainer does not end until `finish_drain`: its checkpoint takes long."""
    step: int = 0
    checkpoint_step: int = 0
    checkpoint_at: float = 0.0
    hot: Hot = field(default_factory=lambda: Hot(0, 0, 0, 0))
    told_hot: int = 0
    """How often hot fields were set from outside."""
    epochs: list[int] = field(default_factory=list)
    """Each epoch in which rank 0 was started, in order."""
    restored: int = 0
    """The step that rank 0 began at."""
    drains: int = 0
    trainers: dict[int, ScriptedChild] = field(default_factory=dict)
    """Rank → child, of the pods that run now."""
    size: int = 1
    """Of the gang."""
    controllers: int = 0
    """Controller pods that run now."""
    supervised: bool = False
    """Its trainer reads fixed rows, and no controller feeds it."""
    servers: int = 1
    """That the controller says are live."""
    gated: bool = False
    """Generation is as far ahead as it may be, the controller says."""
    fates: dict[str, int] = field(default_factory=dict)
    """Tokens by what became of them, as `areal.record.episode_ends` counts them."""

    def begins(self, resolved: ResolvedJob) -> None:
        """A controller starts: the hot fields are the job's until it is told others."""
        spec = resolved.spec
        told = spec.algorithm.max_steps, spec.algorithm.max_staleness, spec.rollout.max_concurrent_rollouts
        self.hot = Hot(*told, ahead(resolved.job))
        self.size = spec.trainer.replicas

    @property
    def whole(self) -> bool:
        """Whether all trainers run in one epoch, and somebody feeds them."""
        members = [child.status for child in self.trainers.values()]
        ready = [status for status in members if status.phase is ChildPhase.READY]
        return (
            len(ready) == self.size
            and len({status.epoch for status in ready}) == 1
            and (self.controllers > 0 or self.supervised)
        )

    def train(self, now: float) -> None:
        """One step, if it can be trained; the last one ends the trainers."""
        if self.paused or not self.whole:
            return
        if self.step < self.hot.max_steps:
            self.step += 1
        if self.step % CHECKPOINT_EVERY == 0 or self.step >= self.hot.max_steps:
            self.save(now)
        if self.step >= self.hot.max_steps:
            for child in list(self.trainers.values()):
                child.exit(0)

    def save(self, now: float) -> None:
        """Write a checkpoint."""
        self.checkpoint_step, self.checkpoint_at = self.step, now

    def started(self, rank: int, epoch: int) -> None:
        """A trainer starts: from the checkpoint."""
        if rank == 0:
            self.epochs.append(epoch)
            self.step = self.restored = self.checkpoint_step

    def draining(self, now: float) -> bool:
        """A trainer was asked to stop; whether it does at once."""
        self.drains += 1
        if not self.hold_drain:
            self.save(now)
        return not self.hold_drain

    def finish_drain(self, now: float) -> None:
        """The checkpoint that took long is written."""
        self.hold_drain = False
        self.save(now)
        for child in self.trainers.values():
            if child.status.phase is ChildPhase.DRAINING:
                child.exit(143)


class RunController(rollout_grpc.RolloutServicer):
    """What operators ask a rollout controller."""

    def __init__(self, run: ScriptedRun) -> None:
        self._run = run

    async def GetRolloutStatus(
        self, request: rollout.GetRolloutStatusRequest, context: Any
    ) -> rollout.GetRolloutStatusResponse:
        run = self._run
        return rollout.GetRolloutStatusResponse(
            job=run.job,
            max_steps=run.hot.max_steps,
            max_staleness=run.hot.max_staleness,
            max_concurrent_rollouts=run.hot.max_concurrent_rollouts,
            ahead=run.hot.ahead,
            trainer_step=run.step,
            served_policy_id=f"{run.step}.f{len(run.epochs)}",
            reward_mean=min(1.0, run.step / 100),
            reward_sampled=1.0,
            fleet=[
                generation.ServerState(server_id=f"generation-{n}", version=max(0, run.step - 1), live=True, ready=True)
                for n in range(run.servers)
            ],
            idle_cause=idle_to_wire(IdleCause.GATE_CLOSED) if run.gated else rollout.IDLE_CAUSE_UNSPECIFIED,
            token_fates=run.fates,
            staleness_mean=1.0,
            committed_group=run.step * 4,
            stalled=run.stalled,
            finished=run.step >= run.hot.max_steps > 0,
        )

    async def SetHotFields(self, request: rollout.SetHotFieldsRequest, context: Any) -> rollout.SetHotFieldsResponse:
        hot = self._run.hot
        self._run.told_hot += 1
        for name in ("max_steps", "max_staleness", "max_concurrent_rollouts", "ahead"):
            if request.HasField(name):  # type: ignore[arg-type]
                setattr(hot, name, getattr(request, name))
        return rollout.SetHotFieldsResponse(
            max_steps=hot.max_steps,
            max_staleness=hot.max_staleness,
            max_concurrent_rollouts=hot.max_concurrent_rollouts,
            ahead=hot.ahead,
        )


class RunTrainer(operations_grpc.TrainerControlServicer):
    """What operators ask rank 0."""

    def __init__(self, run: ScriptedRun) -> None:
        self._run = run

    async def GetTrainerStatus(
        self, request: operations.GetTrainerStatusRequest, context: Any
    ) -> operations.GetTrainerStatusResponse:
        run = self._run
        return operations.GetTrainerStatusResponse(
            policy_id=f"{run.step}.f{len(run.epochs)}",
            step=run.step,
            max_steps=run.hot.max_steps,
            phase="train",
            checkpoint_step=run.checkpoint_step,
            checkpoint_at=run.checkpoint_at,
            epoch=run.epochs[-1] if run.epochs else 0,
            incarnation=len(run.epochs) or 1,
            steps_made=max(0, run.step - run.restored),
        )
