"""The order of training: which groups each step trains, and by when the groups without a batch must be trained.

Owns the batches, the tombstones and the deadlines of the groups in no batch. Promises: a batch, once chosen, never
changes; no group is granted that could be too old when its turn comes. It knows nothing of samples or workers.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from areal.ledger.gate import choose_complete, grant
from areal.rollout.controller.groups import GroupPhase, GroupTombstones, PromptGroup
from areal.rollout.controller.settings import TrainPosition


class TrainOrder:
    """Every group of a job by its place in training."""

    def __init__(
        self, position: TrainPosition, tombstones: Mapping[int, str], batches: Sequence[tuple[int, ...]]
    ) -> None:
        self._position = position
        self.tombstones = GroupTombstones(tombstones)
        self.batches = list(batches)  # by step
        self.written = position.chosen = len(batches)  # of these, in the journal
        self._step_of = {group: step for step, batch in enumerate(batches) for group in batch}
        self.committed = 0  # a checkpoint holds the batches of the steps below
        self.low = 0  # every group below has ended
        self.waiting: set[int] = set()  # groups in no batch
        self.due: Counter[int] = Counter()  # granted groups in no batch, by the last step that may train them

    @property
    def chosen(self) -> int:
        """Steps whose batches are chosen: the next batch is that of this step."""
        return len(self.batches)

    @property
    def last(self) -> int:
        """The highest group that is known here, -1 without any."""
        return max(self.tombstones.last, max(self._step_of, default=-1))

    def taken(self, index: int) -> bool:
        """Whether the trainer has the group in hand, or had it."""
        return self._step_of.get(index, self._position.step) < self._position.step

    def ended(self, index: int) -> bool:
        """Whether nothing more will become of the group: a checkpoint holds it, or it has a tombstone and no batch."""
        step = self._step_of.get(index)
        return index in self.tombstones if step is None else step < self.committed

    def advance_low(self, below: int) -> bool:
        """Moves the low watermark over ended groups below `below`; says whether it moved."""
        before = self.low
        while self.low < below and self.ended(self.low):
            self.low += 1
        return self.low > before

    def fell_back(self, step: int) -> set[int]:
        """A trainer starts from a checkpoint of this step. Returns the groups that it holds."""
        self.committed = step
        self.low = min([self.low, *(min(batch) for batch in self.batches[step:])])
        return {group for batch in self.batches[:step] for group in batch}

    # ---- groups in no batch

    def enter(self, group: PromptGroup) -> None:
        """A group starts to exist: due at its step when it has one, else once it is granted."""
        group.due = self._step_of.get(group.index)
        if group.due is None:
            self.waiting.add(group.index)

    def leave(self, group: PromptGroup) -> None:
        """The group is no longer one of those in no batch."""
        if group.index in self.waiting:
            self.set_due(group, None)
            self.waiting.discard(group.index)

    def set_due(self, group: PromptGroup, due: int | None) -> None:
        """The last step that may train the group changes. One of a batch is due at its step, whatever is said here."""
        if group.index not in self.waiting:
            return
        if group.due is not None:
            self.due[group.due] -= 1
        if due is not None:
            self.due[due] += 1
        self.due += Counter()  # none that is empty
        group.due = due

    def grant(self, group: PromptGroup, floor: int, bound: int) -> None:
        """The group may be made by versions from `floor` on."""
        group.floor, group.staleness_bound = floor, bound
        self.set_due(group, floor + bound)

    def floor_for(self, versions: range, before: int) -> int | None:
        """The floor under which one more group may be granted now, None while there is none.

        `before` counts the groups in no batch that stand before it in admission order.
        """
        settings = self._position.settings
        earliest = self.chosen + before // settings.batch_groups if settings.admission_order else 0
        return grant(self.due, self.chosen, settings.batch_groups, settings.max_staleness, versions, earliest)

    def adopt(self, group: PromptGroup, floor: int, bound: int) -> bool:
        """Whether tokens that somebody has of a group, made under this floor and bound, will be young enough."""
        due = floor + bound
        if group.due is not None and due >= group.due:
            if group.index not in self.waiting:
                group.floor, group.staleness_bound = floor, bound
            return True
        if group.index not in self.waiting:
            return False
        others = self.due - Counter([] if group.due is None else [group.due])
        at, batch_groups = range(floor, floor + 1), self._position.settings.batch_groups
        if grant(others, self.chosen, batch_groups, bound, at) is None:
            return False
        self.grant(group, floor, bound)
        return True

    # ---- batches

    @property
    def wanted(self) -> bool:
        """Whether the trainer waits for a batch to be chosen, or trains the one before it."""
        return self.chosen <= self._position.step and self.chosen < self._position.max_steps

    def pick(self, groups: Mapping[int, PromptGroup], settled: Collection[int]) -> tuple[int, ...] | None:
        """The next batch, None while it waits for a group. `settled` are those in no batch that need no samples.

        The first batches are chosen in admission order, or they would be the short answers.
        """
        settings, first = self._position.settings, None
        never = self.chosen + len(self.waiting) + settings.max_staleness
        whole = (groups[g] for g in settled if groups[g].phase is GroupPhase.CLOSED)
        complete = {group.index: never if group.due is None else group.due for group in whole}
        if settings.admission_order or self.chosen < settings.max_staleness:
            dues = ((g, groups[g].due) for g in sorted(self.waiting))  # looked at one by one: there may be thousands
            able = (
                (g, never if due is None else due) for g, due in dues if settings.admission_order or due is not None
            )
            first = dict(islice(able, settings.batch_groups))
        return choose_complete(self.due, complete, self.chosen, settings.batch_groups, first)

    def certain(self, groups: Mapping[int, PromptGroup]) -> list[int]:
        """Complete groups that the next batch has whatever else becomes complete: they are due with it."""
        whole = (groups[g] for g in self.waiting if groups[g].phase is GroupPhase.CLOSED)
        return sorted(group.index for group in whole if self.due_now(group))

    def due_now(self, group: PromptGroup) -> bool:
        """Whether no batch after the next may have the group."""
        return group.due is not None and group.due <= self.chosen

    def too_old(self, groups: Mapping[int, PromptGroup]) -> list[PromptGroup]:
        """Groups that no batch may hold any more: two controllers at once can come to that, nothing else."""
        if not any(due < self.chosen for due in self.due):
            return []
        return [groups[g] for g in self.waiting if (due := groups[g].due) is not None and due < self.chosen]

    def assign(self, groups: Collection[PromptGroup]) -> None:
        """These groups are the next batch."""
        step = self.chosen
        self.batches.append(tuple(group.index for group in groups))
        self._position.chosen = self.chosen
        for group in groups:
            self.leave(group)
            group.due = self._step_of[group.index] = step

    def trained_of(self, step: int) -> int:
        """Number of groups of a step's batch that are to be trained."""
        return sum(group not in self.tombstones for group in self.batches[step])
