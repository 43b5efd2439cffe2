"""A small world around the ledger's cores: one controller, workers, servers and a trainer, one action at a time, with
faults.

Owns its own judgement: whether a sample was young enough and a group used once is worked out here from what was sampled
and trained, with nothing of the cores. A subclass that breaks one rule is a mutant; `Violation`, `Stalled` or a typed
error is how it is found out.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Collection, Mapping

from areal.errors import FencedError
from areal.ledger import gate
from areal.ledger.audit import examine
from areal.ledger.consumer import Batch, Consumer, ConsumerPolicy, TrainerState
from areal.ledger.evidence import Evidence, EvidenceEntry, Start, TrainedGroup
from areal.ledger.gate import GatePolicy, WaitingGroup, Window
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
        self.ahead = self.random.randint(-(-self.staleness // 2), self.staleness)
        self.max_steps = self.random.randint(2, 5)
        self.filtered = self.random.choice([0.0, 0.2, 0.5])
        self.poisoned = self.random.choice([0.0, 0.0, 0.1])  # of the groups that a trainer takes
        self.checkpoint_interval = self.random.randint(1, 3)
        self.publish_interval = self.random.randint(1, min(2, self.ahead + 1))
        self.store = self.model()
        self.history: deque[LedgerModel] = deque([self.store.fork()], maxlen=40)
        self.journal = JournalState()
        self.evidence = Evidence()
        self.checkpoints = [TrainerState()]
        self.controller_fence = self.trainer_fence = 0
        self.next_admission = self.position = 0  # the trainer took the batches of the steps below
        self.floors: dict[int, int] = {}  # of the groups that were granted
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
        faults = [
            self.kill_trainer, self.lose_tail, self.kill_controller, self.end_earlier, self.zombie, self.fall_back,
        ]  # fmt: skip
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
        raise Stalled(f"{len(self.journal.batches)} batches chosen, {self.position} taken, {self.waiting()} waiting")

    def over(self) -> bool:
        trainer = self.trainer
        return (
            trainer is not None
            and trainer.finished
            and not trainer.publish_due()
            and self.checkpoints[-1] == trainer.state
        )

    def judge(self) -> None:
        """Everything that must hold in the end."""
        trainer = self.trainer
        assert trainer is not None
        self.commit()
        for group in self.waiting():
            self.tombstone(group, "ended")
        report = examine(self.evidence, self.journal, finished=True)
        if not report.ok:
            raise Violation("; ".join(report.problems))
        if report.steps != trainer.policy.max_steps:
            raise Violation(f"{report.steps} steps trained of {trainer.policy.max_steps}")
        if self.served != trainer.version:
            raise Violation(f"version {self.served} is served at the end, {trainer.version} is held")
        if self.store.samples:
            raise Violation(f"samples of {sorted(self.store.samples)} are still held")

    def check_store(self) -> None:
        store = self.store
        if any(g < store.low for g in [*store.samples, *store.closed]):
            raise Violation("a freed group came back")
        if any(store.closed.get(g, COMPLETE) != COMPLETE for g in store.samples):
            raise Violation("a tombstone holds samples")
        if not gate.in_time(self.due(), len(self.journal.batches), self.batch):
            raise Violation(f"more is due than there are batches: {self.due()}")

    # ---- the order

    def steps(self) -> dict[int, int]:
        """Step of each group that was chosen."""
        return {group: step for step, batch in enumerate(self.journal.batches) for group in batch}

    def waiting(self) -> list[int]:
        chosen = self.steps()
        return [g for g in range(self.next_admission) if g not in chosen and g not in self.journal.tombstones]

    def open_groups(self) -> list[int]:
        """Groups that are to be made, with a floor."""
        steps, closed = self.steps(), self.store.closed
        wanted = [g for g in range(self.next_admission) if steps.get(g, self.position) >= self.position]
        wanted = [g for g in wanted if g not in closed and g not in self.journal.tombstones and g >= self.store.low]
        return [g for g in wanted if g in self.floors]

    def due_of(self, group: int) -> int:
        if self.store.closed.get(group) == COMPLETE:
            held = self.store.samples[group].values()
            self.floors[group] = max(self.floors[group], min(about.oldest_version for _, about in held))
        return self.floors[group] + self.staleness

    def due(self) -> Counter[int]:
        return Counter(self.due_of(group) for group in self.waiting() if group in self.floors)

    def grant(self, due: Mapping[int, int], versions: range) -> int | None:
        return gate.grant(due, len(self.journal.batches), self.batch, self.staleness, versions)

    def pick(self, groups: Collection[WaitingGroup], *, by_index: bool) -> tuple[int, ...] | None:
        return gate.choose(groups, len(self.journal.batches), self.batch, by_index=by_index)

    # ---- controller

    def admit(self) -> None:
        """Grant one group: the first that nobody makes, else a new one."""
        ready = [version for version in self.servers if version >= 0]
        if not ready:
            return
        group = next((g for g in self.waiting() if g not in self.floors), self.next_admission)
        waiting, chosen = len(self.waiting()), len(self.journal.batches)
        if group == self.next_admission:
            policy = GatePolicy(self.batch, self.ahead, self.max_steps, 8)
            if not self.room(Window(chosen, waiting, len(self.open_groups()), max(ready)), policy):
                return
            if waiting >= self.batch * (max(ready) + self.ahead + 1 - chosen):
                raise Violation(f"group {group} is further ahead than {self.ahead} batches")
        found = self.grant(self.due(), range(min(ready), max(ready) + 1))
        if found is not None:
            self.next_admission = max(self.next_admission, group + 1)
            self.floors[group] = found

    def room(self, window: Window, policy: GatePolicy) -> int:
        return gate.room(window, policy)

    def decide(self) -> None:
        chosen = self.steps()
        for group in self.decidable():
            if len(self.store.samples.get(group, {})) == self.size:
                if group not in chosen and self.random.random() < self.filtered:
                    self.tombstone(group, "filtered")
                else:
                    self.store.close(self.controller_fence, group, COMPLETE, self.size)
        self.choose()

    def decidable(self) -> list[int]:
        return self.open_groups()

    def choose(self) -> None:
        """The next batch, one ahead of the trainer."""
        step = len(self.journal.batches)
        if step > self.position or step >= self.max_steps:
            return
        closed = self.store.closed
        groups = [
            WaitingGroup(g, self.due_of(g), closed.get(g) == COMPLETE) for g in self.waiting() if g in self.floors
        ]
        picked = self.pick(groups, by_index=step < self.staleness)
        if picked is not None:
            self.journal.batches.append(picked)
            self.assign(step)

    def assign(self, step: int) -> None:
        self.store.assign(self.controller_fence, step, self.journal.batches[step])

    def tombstone(self, group: int, reason: str) -> None:
        self.journal.tombstones[group] = Tombstone(group, reason, self.controller_fence)
        self.store.close(self.controller_fence, group, reason, self.size)

    def start_controller(self) -> None:
        """A controller knows its journal and what the ledger holds."""
        self.controller_fence += 1
        self.store.claim(self.controller_fence)
        held = [*self.store.closed, *self.store.samples, *self.journal.tombstones, *self.steps()]
        self.next_admission = max(held, default=-1) + 1
        samples = self.store.samples.items()
        self.floors = {g: min(about.oldest_version for _, about in held.values()) for g, held in samples if held}
        self.reapply()

    def reapply(self) -> None:
        """The controller's part in healing the store."""
        store, fence = self.store, self.controller_fence
        store.claim(fence)
        self.assign_again()
        for group, tombstone in sorted(self.journal.tombstones.items()):
            answer = store.close(fence, group, tombstone.reason, self.size)
            if answer.outcome == COMPLETE:  # an old backup knows it from before
                store.reopen(fence, group)
                store.close(fence, group, tombstone.reason, self.size)
        for group, step in self.steps().items():
            if step >= self.position:
                self.floors[group] = max(self.floors.get(group, 0), step - self.staleness)
        store.advance(fence, self.low())

    def assign_again(self) -> None:
        for step in range(self.store.committed, len(self.journal.batches)):
            self.assign(step)

    def low(self) -> int:
        """Every group below has ended: it has a tombstone and no batch, or a checkpoint holds its batch."""
        steps, low = self.steps(), 0
        while steps[low] < self.store.committed if low in steps else low in self.journal.tombstones:
            low += 1
        return low

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

    def may_sample(self, floor: int, server: int) -> bool:
        return server >= max(floor, 0)

    def add(self, group: int, index: int) -> None:
        """Stores what some server makes now, if the group may still have it."""
        server = self.random.choice(self.servers)
        if group not in self.floors or not self.may_sample(self.floors[group], server):
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
        state = self.checkpoints[-1]
        self.evidence.starts.append(Start(self.trainer_fence, state.step, self.batch, self.size))
        policy = ConsumerPolicy(self.batch, self.size, self.max_steps, self.publish_interval, self.checkpoint_interval)
        self.trainer = self.consumer(self.trainer_fence, state, policy, self.served)
        self.offered, self.accepted, self.saved = None, False, True
        self.position = state.step
        self.store.recover(self.trainer_fence, state.step)
        self.reapply()

    def train(self) -> None:
        """One phase: restart, publish, save, commit, learn of a batch, tell the controller, or the gradient itself."""
        trainer = self.trainer
        if trainer is None:
            self.start_trainer()
        elif self.offered is not None and self.accepted:
            self.gradient(trainer, self.offered)
        elif self.offered is not None:
            self.tell(trainer, self.offered)
        elif trainer.publish_due():
            self.served = max(self.served, trainer.version)
            trainer.published()
        elif not self.saved or trainer.checkpoint_due():
            self.save_or_commit(trainer)
        else:
            self.take(trainer)

    def take(self, trainer: Consumer) -> None:
        trainer.set_max_steps(self.max_steps)
        wanted = trainer.want()
        if wanted is None:
            return
        self.offered = trainer.offer(self.store.take(self.trainer_fence, wanted))
        self.accepted = False
        unreadable = (
            [g.group for g in self.offered.groups if self.random.random() < self.poisoned] if self.offered else []
        )
        for group in unreadable:
            self.tombstone(group, "poison")
        if unreadable:
            trainer.drop()
            self.offered = None

    def tell(self, trainer: Consumer, batch: Batch) -> None:
        """The controller compares a batch with what it chose."""
        if batch.step < self.max_steps and not self.whole(batch):
            trainer.drop()
            self.offered = None
            return
        if batch.step < self.max_steps:
            self.position = max(self.position, batch.step + 1)
        self.accepted = trainer.accept(batch, self.max_steps)
        if not self.accepted:
            self.offered = None

    def whole(self, batch: Batch) -> bool:
        if batch.step >= len(self.journal.batches):
            return False
        left = [g for g in self.journal.batches[batch.step] if g not in self.journal.tombstones]
        return len(left) == len(batch.groups)

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
            self.checkpoints.append(trainer.state)
            self.saved = False
        else:
            self.commit()

    def commit(self) -> None:
        trainer = self.trainer
        assert trainer is not None
        trainer.committed(self.checkpoints[-1])
        self.store.commit(self.trainer_fence, self.checkpoints[-1].step)
        self.saved = True
        self.store.advance(self.controller_fence, self.low())

    # ---- faults

    def kill_trainer(self) -> None:
        self.trainer = None

    def fall_back(self) -> None:
        """The newest checkpoint can't be read."""
        self.trainer = None
        if len(self.checkpoints) > 1:
            self.checkpoints.pop()

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
        """It repeats where it started from; the controller then compares the store once more."""
        committed = self.trainer.committed_state if self.trainer is not None else self.checkpoints[-1]
        self.store.recover(self.trainer_fence, committed.step)
        self.reapply()

    def end_earlier(self) -> None:
        """maxSteps is lowered: what no batch is left for ends, the least urgent first."""
        chosen = len(self.journal.batches)
        self.max_steps = max(1, chosen, min(self.max_steps, self.random.randint(1, self.max_steps)))
        last = self.max_steps + self.staleness + 1
        waiting = sorted(self.waiting(), key=lambda g: (self.due_of(g) if g in self.floors else last, g))
        for group in reversed(waiting[self.batch * (self.max_steps - chosen) :]):
            self.tombstone(group, "ended")

    def zombie(self) -> None:
        """An old trainer wakes up and goes on as if nothing had been."""
        if self.trainer_fence > 1 and self.store.trainer_fence == self.trainer_fence:
            try:
                self.store.commit(self.trainer_fence - 1, self.store.committed + 1)
            except FencedError:
                return
            raise Violation("an old trainer committed")
