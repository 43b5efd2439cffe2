"""A small world around the ledger's cores: one controller, workers, servers and a trainer, one action at a time, with
faults.

Owns its own judgement: whether a sample was young enough and a group used once is worked out here from what was sampled
and trained, with nothing of the cores. A subclass that breaks one rule is a mutant; `Violation`, `Stalled` or a typed
error is how it is found out.
"""

from __future__ import annotations

import random
from collections import deque

from areal.errors import FencedError
from areal.ledger.audit import examine
from areal.ledger.consumer import Batch, Consumer, ConsumerPolicy, TrainerState
from areal.ledger.evidence import Evidence, EvidenceEntry, Start, TrainedGroup
from areal.ledger.gate import GatePolicy, Window, floor, may_sample, room
from areal.ledger.journal import JournalState, Tombstone
from areal.ledger.state import LedgerModel
from areal.ledger.values import COMPLETE, SampleMeta
from ledger_samples import meta, payload


class Violation(AssertionError):
    """A promise is broken."""


class Stalled(AssertionError):
    """Nothing goes on any more."""


class World:
    """One seeded schedule. `run` returns when the run finished, or raises."""

    model = LedgerModel
    consumer = Consumer
    max_actions = 6000
    faults = 12  # at most; then the world is kind, so that the run can end

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.batch, self.size = self.random.choice([(1, 2), (2, 2), (3, 1)])
        self.staleness = self.random.randint(0, 3)
        self.max_steps = self.random.randint(2, 5)
        self.filtered = self.random.choice([0.0, 0.2, 0.5])
        self.checkpoint_interval = self.random.randint(1, 3)
        self.publish_interval = self.random.randint(1, min(2, self.staleness + 1))
        self.store = self.model()
        self.history: deque[LedgerModel] = deque([self.store.fork()], maxlen=40)
        self.journal = JournalState()
        self.evidence = Evidence()
        self.checkpoint = TrainerState()
        self.controller_fence = self.trainer_fence = 0
        self.next_admission = self.cursor = 0
        self.served = -1
        self.servers = [-1, -1]  # the version that each holds
        self.attempt = 0
        self.made: dict[int, int] = {}  # xxh3 of a sample → its version
        self.trainer: Consumer | None = None
        self.offered: Batch | None = None
        self.accepted = self.saved = False
        self.start_controller()
        self.start_trainer()

    # ---- run

    def run(self) -> None:
        """Acts until all is trained, published, saved and committed."""
        actions = [self.admit, self.sample, self.sample, self.sample, self.decide, self.load, self.train, self.train]
        faults = [self.kill_trainer, self.lose_tail, self.kill_controller, self.end_earlier, self.zombie]
        for _ in range(self.max_actions):
            if self.faults and self.random.random() < 0.06:
                self.faults -= 1
                self.random.choice(faults)()
            else:
                self.random.choice(actions)()
            self.history.append(self.store.fork())
            self.check_store()
            if self.over():
                return self.judge()
        raise Stalled(
            f"low {self.store.low} frontier {self.store.frontier} cursor {self.cursor} of {self.next_admission}"
        )

    def over(self) -> bool:
        trainer = self.trainer
        return (
            trainer is not None and trainer.finished and not trainer.publish_due() and self.checkpoint == trainer.state
        )

    def judge(self) -> None:
        """Everything that must hold in the end."""
        trainer = self.trainer
        assert trainer is not None
        self.commit()
        report = examine(self.evidence, self.journal, finished=True)
        if not report.ok:
            raise Violation("; ".join(report.problems))
        if report.trained != trainer.policy.max_steps * self.batch:
            raise Violation(f"{report.trained} groups trained in {trainer.policy.max_steps} steps of {self.batch}")
        if self.served != trainer.version:
            raise Violation(f"version {self.served} is served at the end, {trainer.version} is held")
        if any(g < trainer.state.next_group for g in [*self.store.samples, *self.store.closed]):
            raise Violation("a finished group is still held")

    def check_store(self) -> None:
        store = self.store
        if store.ready != sorted(set(store.ready)) or any(g not in store.closed for g in store.ready):
            raise Violation(f"ready stream {store.ready} of closed {sorted(store.closed)}")
        if any(g < store.low for g in [*store.samples, *store.closed]):
            raise Violation("a freed group came back")
        if any(store.closed.get(g, COMPLETE) != COMPLETE for g in store.samples):
            raise Violation("a tombstone holds samples")

    # ---- controller

    def rank(self, group: int) -> int:
        return group - sum(t < group for t in self.journal.tombstones)

    def open_groups(self) -> list[int]:
        known = self.journal.tombstones
        return [g for g in range(self.cursor, self.next_admission) if g not in known and g not in self.store.closed]

    def admit(self) -> None:
        policy = GatePolicy(self.batch, self.staleness, self.max_steps, 8)
        window = Window(self.rank(self.next_admission), len(self.open_groups()), max(self.servers))
        admitted = self.room(window, policy)
        self.next_admission += admitted
        if admitted and self.rank(self.next_admission - 1) >= self.batch * (max(self.servers) + self.staleness + 1):
            raise Violation(f"group {self.next_admission - 1} can't be trained young enough")

    def room(self, window: Window, policy: GatePolicy) -> int:
        return room(window, policy)

    def decide(self) -> None:
        for group in self.decidable():
            if len(self.store.samples.get(group, {})) == self.size:
                if self.random.random() < self.filtered:
                    self.tombstone(group, "filtered")
                else:
                    self.store.close(self.controller_fence, group, COMPLETE, self.size)

    def decidable(self) -> list[int]:
        return self.open_groups()

    def tombstone(self, group: int, reason: str) -> None:
        self.journal.tombstones[group] = Tombstone(group, reason, self.controller_fence)
        self.store.close(self.controller_fence, group, reason, self.size)

    def start_controller(self) -> None:
        """A controller knows its journal, the told cursor and what the ledger holds."""
        self.controller_fence += 1
        self.store.claim(self.controller_fence)
        held = [*self.store.closed, *self.store.samples, *self.journal.tombstones, self.cursor - 1]
        self.next_admission = max(held, default=-1) + 1
        self.reapply()

    def reapply(self) -> None:
        """The controller's part in healing the store."""
        self.store.claim(self.controller_fence)
        for group, tombstone in sorted(self.journal.tombstones.items()):
            answer = self.store.close(self.controller_fence, group, tombstone.reason, self.size)
            if answer.outcome == COMPLETE:  # an old backup knows it from before
                self.store.reopen(self.controller_fence, group)
                self.store.close(self.controller_fence, group, tombstone.reason, self.size)
        self.store.advance(self.controller_fence, self.cursor, self.trainer_fence)

    # ---- workers, servers

    def sample(self) -> None:
        groups = self.open_groups()
        if not groups:
            return
        group = self.random.choice(groups)
        index = self.random.randrange(self.size)
        self.add(group, index)
        if self.random.random() < 0.1:
            self.add(group, index)
            self.add(self.random.randrange(self.next_admission), index)  # a late one of another life

    def may_sample(self, oldest: int, server: int) -> bool:
        return server >= 0 and may_sample(oldest, server)

    def add(self, group: int, index: int) -> None:
        """Stores what some server makes now, if the group may still have it."""
        server = self.random.choice(self.servers)
        if not self.may_sample(floor(self.rank(group), self.batch, self.staleness), server):
            return
        self.attempt += 1
        about: SampleMeta = meta(self.attempt, oldest=server, staleness=self.staleness)
        self.made[about.xxh3] = server
        self.store.add_sample(group, index, payload(group, index, self.attempt), about)

    def load(self) -> None:
        """One of the servers swaps, at last."""
        self.servers[self.random.randrange(len(self.servers))] = self.served

    # ---- trainer

    def start_trainer(self) -> None:
        self.trainer_fence += 1
        state = self.checkpoint
        self.evidence.starts.append(Start(self.trainer_fence, state.step, self.batch, self.size))
        policy = ConsumerPolicy(self.batch, self.size, self.max_steps, self.publish_interval, self.checkpoint_interval)
        self.trainer = self.consumer(self.trainer_fence, state, policy, self.served)
        self.offered, self.accepted, self.saved = None, False, True
        self.cursor = state.next_group
        self.store.recover(self.trainer_fence, state.next_group)

    def train(self) -> None:
        """One phase: restart, publish, save, commit, learn of a batch, tell the cursor, or the gradient itself."""
        trainer = self.trainer
        if trainer is None:
            self.start_trainer()
        elif self.offered is not None and self.accepted:
            self.gradient(trainer, self.offered)
        elif self.offered is not None:
            self.tell(trainer, self.offered)
        elif trainer.publish_due():
            self.served = trainer.version
            trainer.published()
        elif not self.saved or trainer.checkpoint_due():
            self.save_or_commit(trainer)
        else:
            self.take(trainer)

    def take(self, trainer: Consumer) -> None:
        trainer.set_max_steps(self.max_steps)
        wanted = trainer.want()
        if wanted is not None:
            self.offered = trainer.offer(self.store.take(self.trainer_fence, *wanted))
            self.accepted = False

    def tell(self, trainer: Consumer, batch: Batch) -> None:
        """The controller acknowledges a cursor that holds whole batches by its own count."""
        shortened = self.max_steps <= batch.step
        if not shortened and self.rank(batch.next_group) != (batch.step + 1) * self.batch:
            trainer.drop()
            self.offered = None
            return
        if not shortened:
            self.cursor = max(self.cursor, batch.next_group)
        self.accepted = trainer.accept(batch, self.max_steps)
        if not self.accepted:
            self.offered = None

    def gradient(self, trainer: Consumer, batch: Batch) -> None:
        groups = tuple(
            TrainedGroup(g.group, tuple((i, m.xxh3) for i, m in zip(g.indices, g.metas, strict=True)))
            for g in batch.groups
        )
        for group in groups:
            for _, xxh3 in group.samples:
                if batch.step - self.made[xxh3] > self.staleness:
                    raise Violation(
                        f"step {batch.step} trains a token of version {self.made[xxh3]}, η {self.staleness}"
                    )
        self.evidence.entries.append(EvidenceEntry(batch.step, self.trainer_fence, "trained", groups))
        trainer.trained(batch)
        self.offered = None

    def save_or_commit(self, trainer: Consumer) -> None:
        if self.saved:
            self.checkpoint = trainer.state
            self.saved = False
        else:
            self.commit()

    def commit(self) -> None:
        trainer = self.trainer
        assert trainer is not None
        trainer.committed(self.checkpoint)
        self.store.commit(self.trainer_fence, self.checkpoint.next_group)
        self.saved = True

    # ---- faults

    def kill_trainer(self) -> None:
        self.trainer = None

    def kill_controller(self) -> None:
        self.start_controller()

    def lose_tail(self) -> None:
        """The store goes back in time; everyone asserts what it is the authority for, in any order."""
        self.store = self.random.choice(self.history).fork()
        healers = [self.reapply]
        if self.trainer is not None:
            healers.append(self.trainer_heals)
        self.random.shuffle(healers)
        for heal in healers:
            heal()

    def trainer_heals(self) -> None:
        assert self.trainer is not None
        self.store.recover(self.trainer_fence, self.checkpoint.next_group)

    def end_earlier(self) -> None:
        """maxSteps is lowered: what is not on its way to a gradient ends."""
        reached = -(-self.rank(self.cursor) // self.batch)
        self.max_steps = max(1, reached, min(self.max_steps, self.random.randint(1, self.max_steps)))
        beyond = range(self.cursor, self.next_admission)
        groups = [g for g in beyond if g not in self.journal.tombstones and self.rank(g) >= self.max_steps * self.batch]
        for group in reversed(groups):
            self.tombstone(group, "ended")

    def zombie(self) -> None:
        """An old trainer wakes up and goes on as if nothing had been."""
        if self.trainer_fence > 1 and self.store.trainer_fence == self.trainer_fence:
            try:
                self.store.commit(self.trainer_fence - 1, self.store.frontier)
            except FencedError:
                return
            raise Violation("an old trainer committed")
