"""The trainer in the simulation: the real consumer; training is a pause and a line of evidence."""

from __future__ import annotations

from collections.abc import Callable, Generator

from areal.errors import ArealError, FencedError, InfraError
from areal.ledger.consumer import Batch, Consumer, ConsumerPolicy
from areal.rollout.controller.core import Controller
from areal.rollout.controller.reports import TrainerReport, Weights
from areal.sim.controller_role import ControllerRole
from areal.sim.scenario import Point
from areal.sim.scheduler import Life, Process
from areal.sim.world import World

_BEAT_S = 0.25
_POLL_S = 0.05


class TrainerRole:
    """Dies anywhere and starts again from a checkpoint."""

    def __init__(self, world: World, controller: ControllerRole) -> None:
        self.world = world
        self.finished = False
        self._controller = controller
        self._life = Life(world.scheduler)

    def start(self, *, rollback: bool = False) -> None:
        """A new incarnation from the newest checkpoint."""
        self._life = Life(self.world.scheduler)
        self.finished = False
        self._life.start(self._run(rollback))

    def kill(self) -> None:
        """Die."""
        self._life.end()

    def fall_back(self) -> None:
        """The newest checkpoint turns out to be bad."""
        if len(self.world.checkpoints) > 1:
            self.world.checkpoints.pop()

    # ---- one life

    def _run(self, rollback: bool) -> Process:
        world, scenario = self.world, self.world.scenario
        fence, start = world.fence("trainer"), world.checkpoints[-1]
        while not world.store.up:
            yield _POLL_S
        world.store.ledger().recover(fence, start.next_group)
        self._run_id, self._cursor = world.store.run_id, start.next_group
        world.truth.starts.append((fence, start.step))
        world.log(lambda: f"trainer f{fence} starts at step {start.step}, group {start.next_group}")
        world.on_point(Point.RECOVERED)
        yield scenario.train_s
        yield from self._ask(lambda core, ticket: core.attach(ticket, fence, start.next_group, start.step))
        core = self._controller.core
        served = core.fleet.served if core else world.kept.served
        policy = ConsumerPolicy(
            scenario.batch_groups,
            scenario.group_size,
            world.kept.max_steps or scenario.max_steps,
            scenario.publish_interval,
            scenario.checkpoint_interval,
        )
        consumer = self._consumer = Consumer(fence, start, policy, served.version if served else -1)
        self._life.start(self._beats(consumer))
        if rollback and served is not None:
            yield from self._publish(consumer, rollback=True)
        yield from self._train(consumer)
        self.finished = True

    def _train(self, consumer: Consumer) -> Process:
        world = self.world
        while True:
            if consumer.publish_due():
                yield from self._publish(consumer)
            if consumer.checkpoint_due(self._checkpoint_now()):
                yield from self._checkpoint(consumer)
            want = consumer.want()
            if want is None:
                if not consumer.publish_due() and not consumer.checkpoint_due():
                    return
                continue
            self._heal(consumer)
            taken = world.store.ledger().take(consumer.fence, *want) if world.store.up else []
            if not taken:
                yield _POLL_S
                continue
            yield 0.005  # payloads are read after their markers: whatever dies now was taken
            if consumer.want() != want:
                continue
            batch = consumer.offer(taken)
            world.on_point(Point.TOOK)
            if batch is not None and (yield from self._advance(consumer, batch)):
                yield world.scheduler.between(0.5, 1.5) * world.scenario.train_s
                payloads = tuple(group.payloads for group in batch.groups)
                groups = tuple(group.group for group in batch.groups)
                world.truth.trained.append((batch.step, consumer.fence, groups, payloads))
                world.log(lambda s=batch.step, g=groups: f"trainer trains step {s}: {g}")  # type: ignore[misc]
                world.on_point(Point.TRAINED)
                yield 0.01
                consumer.trained(batch)

    def _advance(self, consumer: Consumer, batch: Batch) -> Generator[float, None, bool]:
        self.world.on_point(Point.OFFERED)
        try:
            yield from self._ask(
                lambda core, ticket: core.advance(ticket, consumer.fence, batch.next_group, batch.step)
            )
        except InfraError as error:
            words = error.message
            self.world.log(lambda: f"trainer: advance refused: {words}")
            consumer.drop()
            return False
        core = self._controller.core
        accepted = consumer.accept(batch, core.max_steps if core else consumer.policy.max_steps)
        if accepted:
            self._cursor = batch.next_group
            self.world.on_point(Point.ACKNOWLEDGED)
        return accepted

    def _publish(self, consumer: Consumer, *, rollback: bool = False) -> Process:
        version = consumer.version
        policy_id = f"{version}.f{consumer.fence}"
        weights = Weights(policy_id, version, consumer.fence, "volume", "digest", rollback)
        yield from self._ask(lambda core, ticket: core.publish(ticket, consumer.fence, weights))
        self.world.log(lambda: f"trainer published {policy_id}")
        consumer.published()
        self.world.on_point(Point.PUBLISHED)
        if rollback:
            consumer.served_version = version

    def _checkpoint(self, consumer: Consumer) -> Process:
        state = consumer.state
        yield 0.05
        self.world.checkpoints.append(state)
        del self.world.checkpoints[:-3]
        self.world.on_point(Point.SAVED)
        yield 0.02
        consumer.committed(state)
        while not self.world.store.up:
            yield _POLL_S
        self._heal(consumer)
        self.world.store.ledger().commit(consumer.fence, state.next_group)
        self.world.on_point(Point.COMMITTED)

    def _heal(self, consumer: Consumer) -> None:
        """As the ledger's client: a store that restarted hears the last recover again."""
        store = self.world.store
        if store.up and store.run_id != self._run_id:
            self._run_id = store.run_id
            cursor = max(self._cursor, consumer.state.next_group)
            store.ledger().recover(consumer.fence, consumer.committed_state.next_group, cursor)

    # ---- the controller

    def _ask(self, call: Callable[[Controller, int], None]) -> Process:
        """A call, repeated until some controller answers. Raises its refusal."""
        controller = self._controller
        while True:
            while controller.core is None:
                yield _POLL_S
            yield self.world.scheduler.between(0.001, 0.02)
            if controller.core is None:
                continue
            incarnation, ticket = controller.incarnation, controller.ask(call)
            while controller.core is not None and controller.incarnation == incarnation:
                answer = controller.answers.pop(ticket, None)
                if answer is not None:
                    self._raise(answer.error)
                    return
                yield 0.01

    def _raise(self, error: ArealError | None) -> None:
        if error is None:
            return
        if isinstance(error, FencedError):
            self.world.truth.problems.append(f"a living trainer was fenced: {error.message}")
        raise error

    def _checkpoint_now(self) -> bool:
        core = self._controller.core
        return core is not None and core.desk.checkpoint_now

    def _beats(self, consumer: Consumer) -> Process:
        while True:
            core = self._controller.core
            if core is not None:
                if not self.finished:
                    consumer.set_max_steps(core.max_steps)
                state = consumer.state
                report = TrainerReport(
                    consumer.fence, state.step, state.next_group, consumer.committed_state.next_group, self.finished
                )
                self._controller.post(lambda core, now, report=report: core.trainer(report))  # type: ignore[misc]
            yield _BEAT_S
