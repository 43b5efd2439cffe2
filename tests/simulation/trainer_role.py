"""The trainer in the simulation: the real consumer; training is a pause and a line of evidence."""

from collections.abc import Generator

from areal.cards import CardSide
from areal.errors import FencedError, InfraError
from areal.ledger.consumer import Batch, Consumer, ConsumerPolicy
from areal.ledger.values import TakenGroup, TombstoneReason
from areal.rollout.controller.core import CardTurns
from areal.rollout.controller.inputs import (
    AdvanceTrainer,
    AttachTrainer,
    Call,
    ProposeTombstone,
    PublishedWeights,
    PublishWeights,
    TrainerBeat,
    TrainerReport,
)

from simulation.controller_role import Connection, ControllerRole
from simulation.scenario import Point
from simulation.scheduler import Incarnation, Process
from simulation.world import SimWorld, TrueStep

_BEAT_S = 0.25
_POLL_S = 0.05


class TrainerProcess:
    """One incarnation, from its fence and its checkpoint on. Dies anywhere."""

    def __init__(self, world: SimWorld, controller: ControllerRole, *, rollback: bool = False) -> None:
        self.world = world
        self.life = Incarnation(world.scheduler)
        self.finished = False
        self.fence = world.fence("trainer")
        self._connection = Connection(world, controller)
        self._turn = 0  # of shared cards: the newest after which it gave them back
        self._wants = False
        self._due: tuple[int, list[int]] = (-1, [])  # as the controller said a little ago
        self._gradient: list[TakenGroup] = []  # of groups that were begun before their batch was whole
        self.life.start(self._whole_life(rollback))

    def _whole_life(self, rollback: bool) -> Process:
        try:
            yield from self._run(rollback)
        except FencedError as error:
            words = error.message
            self.world.log(lambda: f"trainer f{self.fence} ends: {words}")
            if self.fence == self.world.fences["trainer"]:
                self.world.truth.problems.append(f"a living trainer was fenced: {words}")
            self.life.end()

    def _run(self, rollback: bool) -> Process:
        world, scenario, fence = self.world, self.world.scenario, self.fence
        yield from self._take_cards()
        start = world.newest_checkpoint()
        while not world.store.up:
            yield _POLL_S
        self._run_id = world.store.run_id
        world.store.ledger().recover(fence, start.step)
        world.used_ledger("trainer", fence)
        world.truth.starts.append((fence, start.step))
        world.log(lambda: f"trainer f{fence} starts at step {start.step}")
        world.on_point(Point.RECOVERED)
        yield scenario.train_s
        yield from self._ask(AttachTrainer(fence, start.step))
        process = self._connection.process()
        core = process.core if process is not None else None
        served = core.fleet.served if core is not None else None
        policy = ConsumerPolicy(
            scenario.batch_groups,
            scenario.group_size,
            core.max_steps if core is not None else scenario.max_steps,
            scenario.publish_interval,
            scenario.checkpoint_interval,
        )
        consumer = Consumer(fence, start, policy, served.version if served else -1)
        self.life.start(self._beats(consumer))
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
            if (want := consumer.want()) is None:
                if not consumer.publish_due() and not consumer.checkpoint_due():
                    return
                continue
            self._heal(consumer)
            taken = world.store.ledger().take(consumer.fence, want) if world.store.up else []
            if world.store.up:
                world.used_ledger("trainer", self.fence)
            if not taken:
                if world.store.up and not world.scenario.shared:
                    self._begin(consumer, want)
                yield from self._rest(consumer) if world.scenario.shared else (_POLL_S,)
                continue
            world.on_point(Point.TOOK)
            yield world.scenario.decode_s  # payloads are read after their markers: whatever dies now was taken
            if consumer.want() != want:
                continue
            if world.unreadable:
                yield from self._give_up(taken)
                continue
            batch = consumer.offer(taken)
            if batch is not None and (yield from self._advance(consumer, batch)):
                yield world.scheduler.between(0.5, 1.5) * world.scenario.train_s
                self._trained(batch)
                yield 0.01
                consumer.trained(batch)

    def _begin(self, consumer: Consumer, want: int) -> None:
        """Groups that the batch will have; what was said of them may be old, and they lost since."""
        (step, due), process = self._due, self._connection.process()
        if process is not None and process.core is not None:
            book = process.core.book
            self._due = book.order.chosen, book.order.certain(book.groups)
        fresh = [group for group in due if group not in consumer.begun]
        if step == want and (part := consumer.begin(step, self.world.store.model.peek(fresh))) is not None:
            self._gradient += part.groups
            self.world.log(lambda: f"trainer f{self.fence} begins {[group.group for group in part.groups]}")

    def _give_up(self, groups: list[TakenGroup]) -> Process:
        self.world.unreadable = False
        for group in groups:
            yield from self._ask(ProposeTombstone(self.fence, group.group, TombstoneReason.POISON))

    def _take_cards(self) -> Process:
        while self.world.scenario.shared and not self.world.take_cards(CardSide.TRAINING, self.life):
            yield _POLL_S

    def _rest(self, consumer: Consumer) -> Process:
        """Give shared cards back, until the next turn or until the run is over."""
        yield _POLL_S
        if (turns := self._turns()) is None:
            return
        self.world.cards[CardSide.TRAINING].discard(self.life)
        self._turn = turns.number
        while (turns := self._turns()) is None or not turns.training or turns.number <= self._turn:
            self._wants = consumer.finished
            yield _POLL_S
        self._wants = False
        yield from self._take_cards()

    def _turns(self) -> CardTurns | None:
        process = self._connection.process()
        return process.core.turns if process is not None and process.core is not None else None

    def _trained(self, batch: Batch) -> None:
        world, begun = self.world, self._gradient
        if sorted(group.group for group in begun) != list(batch.begun):  # as `GradientSums.fit`
            begun = []
        left = [group for group in batch.groups if not begun or group.group not in batch.begun]
        gradient = sorted([*begun, *left], key=lambda group: group.group)
        self._gradient = []
        groups = tuple(group.group for group in gradient)
        payloads = tuple(group.payloads for group in gradient)
        world.trained(TrueStep(batch.step, self.fence, groups, payloads, world.scheduler.now))
        world.log(lambda: f"trainer f{self.fence} trains step {batch.step}: {groups}")
        world.on_point(Point.TRAINED)

    def _advance(self, consumer: Consumer, batch: Batch) -> Generator[float, None, bool]:
        self.world.on_point(Point.OFFERED)
        try:
            yield from self._ask(AdvanceTrainer(consumer.fence, batch.step, len(batch.groups)))
        except InfraError as error:
            words = error.message
            self.world.log(lambda: f"trainer f{self.fence}: advance refused: {words}")
            consumer.drop()
            return False
        process = self._connection.process()
        core = process.core if process is not None else None
        accepted = consumer.accept(batch, core.max_steps if core is not None else consumer.policy.max_steps)
        if accepted:
            self.world.on_point(Point.ACKNOWLEDGED)
        return accepted

    def _publish(self, consumer: Consumer, *, rollback: bool = False) -> Process:
        version = consumer.version
        policy_id = f"{version}.f{consumer.fence}"
        weights = PublishedWeights(policy_id, version, consumer.fence, "volume", "digest", rollback)
        yield from self._ask(PublishWeights(consumer.fence, weights))
        self.world.log(lambda: f"trainer published {policy_id}")
        consumer.published()
        self.world.on_point(Point.PUBLISHED)
        if rollback:
            consumer.served_version = version

    def _checkpoint(self, consumer: Consumer) -> Process:
        world, state = self.world, consumer.state
        if world.fences["trainer"] != self.fence:
            raise FencedError("a newer trainer has begun")
        world.on_point(Point.SAVING)
        yield 0.05
        world.save(self.fence, state)
        world.on_point(Point.SAVED)
        yield 0.02
        consumer.committed(state)
        while not world.store.up:
            yield _POLL_S
        self._heal(consumer)
        world.store.ledger().commit(consumer.fence, state.step)
        world.used_ledger("trainer", self.fence)
        world.on_point(Point.COMMITTED)

    def _heal(self, consumer: Consumer) -> None:
        """As the ledger's client: a store that restarted hears the last recover again."""
        store = self.world.store
        if store.up and store.run_id != self._run_id:
            self._run_id = store.run_id
            store.ledger().recover(consumer.fence, consumer.committed_state.step)

    # ---- the controller

    def _ask(self, call: Call) -> Process:
        """A call, repeated until some controller answers. Raises its refusal."""
        while True:
            while (process := self._connection.process()) is None or process.carrier is None:
                yield _POLL_S
            yield self.world.scheduler.between(0.001, 0.02)
            if not process.life.alive:
                continue
            ticket = process.carrier.ask(call)
            process.callers[ticket] = self.fence
            while self._connection.process() is process:
                if (answer := process.answers.pop(ticket, None)) is not None:
                    if answer.error is not None:
                        raise answer.error
                    return
                yield 0.01

    def _checkpoint_now(self) -> bool:
        process = self._connection.process()
        return process is not None and process.core is not None and process.core.desk.checkpoint_now

    def _beats(self, consumer: Consumer) -> Process:
        while True:
            if (process := self._connection.process()) is not None and process.core is not None:
                if not self.finished:
                    consumer.set_max_steps(process.core.max_steps)
                state = consumer.state
                report = TrainerReport(
                    consumer.fence, state.step, consumer.committed_state.step, self.finished,
                    turn=self._turn, wants_cards=self._wants,
                )  # fmt: skip
                if self.finished and process.core.turns is not None:
                    self.world.cards[CardSide.TRAINING].discard(self.life)
                    self._turn = process.core.turns.number
                process.post(TrainerBeat(report))
            yield _BEAT_S


class TrainerRole:
    """The trainer's name."""

    def __init__(self, world: SimWorld, controller: ControllerRole) -> None:
        self.current: TrainerProcess | None = None
        self._world = world
        self._controller = controller

    def start(self, *, rollback: bool = False) -> None:
        """Another process begins, from the newest checkpoint."""
        self.current = TrainerProcess(self._world, self._controller, rollback=rollback)
