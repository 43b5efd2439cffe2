"""The ledger's transitions, as a pure model.

Owns what each operation means: the Lua scripts do the same, one by one, and are tested against this. Every operation is
atomic, idempotent and, except `add_sample`, fenced: an older fence is refused, a newer one is adopted, so a store that
lost its tail heals. It never blocks, never reads a clock and never forgets a group that is neither consumed nor
reopened.
"""

from collections.abc import Sequence

from areal.errors import FencedError
from areal.ledger import values


class LedgerModel:
    """A whole ledger in memory.

    Invariants: a group below `low` is not written to; a tombstone and what is trained hold no samples; no batch below
    `committed` is held; a step's batch never changes.
    """

    def __init__(self) -> None:
        self.trainer_fence = 0
        self.controller_fence = 0
        self.low = 0
        self.committed = 0
        self.closed: dict[int, str] = {}
        self.samples: dict[int, dict[int, tuple[bytes, values.SampleMeta]]] = {}
        self.batches: dict[int, tuple[int, ...]] = {}

    def fork(self) -> "LedgerModel":
        """A copy, for example to go back to after a lost tail."""
        other = type(self)()
        other.trainer_fence, other.controller_fence = self.trainer_fence, self.controller_fence
        other.low, other.committed = self.low, self.committed
        other.closed = dict(self.closed)
        other.samples = {group: dict(held) for group, held in self.samples.items()}
        other.batches = dict(self.batches)
        return other

    # ---- worker

    def add_sample(self, group: int, index: int, payload: bytes, meta: values.SampleMeta) -> values.AddResult:
        """Stores a sample once; only `close` decides what its group becomes."""
        held = self.samples.get(group, {}).get(index)
        stored = held[1] if held else None
        if group < self.low or group in self.closed:
            return values.AddResult(values.AddOutcome.FINISHED, stored)
        if stored is not None:
            return values.AddResult(values.AddOutcome.DUPLICATE, stored)
        self.samples.setdefault(group, {})[index] = (payload, meta)
        return values.AddResult(values.AddOutcome.STORED, meta)

    # ---- controller

    def claim(self, fence: int) -> None:
        """A controller starts: older ones are refused from now on."""
        self._check_controller(fence)

    def close(
        self, fence: int, group: int, outcome: str, group_size: int, at_least: int | None = None
    ) -> values.CloseResult:
        """Ends the generation of a group, completely or by a tombstone, or tells that a checkpoint holds it.

        Complete needs `group_size` samples, or `at_least` of them where a deadline passed. Every other outcome drops
        the samples. Only poison, ended and trained may follow on complete.
        """
        self._check_controller(fence)
        if group < self.low:
            return values.CloseResult(values.CloseStatus.ALREADY)
        present = self.closed.get(group)
        if present is not None and not (present == values.COMPLETE and outcome in values.AFTER_COMPLETE):
            return values.CloseResult(values.CloseStatus.ALREADY, present)
        if outcome == values.COMPLETE:
            held = self.samples.get(group, {})
            missing = tuple(i for i in range(group_size) if i not in held)
            if group_size - len(missing) < (group_size if at_least is None else at_least):
                return values.CloseResult(values.CloseStatus.MISSING, None, missing)
        else:
            self.samples.pop(group, None)
        self.closed[group] = outcome
        return values.CloseResult(values.CloseStatus.CLOSED, outcome)

    def assign(self, fence: int, step: int, groups: Sequence[int]) -> None:
        """These groups make the batch of `step`, for ever.

        What an older checkpoint freed of them, or the watermark passed, is taken back to admitted: it will be made
        again. A batch that a checkpoint holds is freed at once.
        """
        self._check_controller(fence)
        self.batches[step] = tuple(groups)
        if step < self.committed:
            self._free(step)
            return
        self.low = min(self.low, *groups)
        for group in groups:
            if self.closed.get(group) == values.TRAINED:
                del self.closed[group]

    def advance(self, fence: int, low: int) -> None:
        """Every group below `low` has ended: nothing is kept of them any more."""
        self._check_controller(fence)
        if low > self.low:
            self.low = low
            self.closed = {group: outcome for group, outcome in self.closed.items() if group >= low}
            self.samples = {group: held for group, held in self.samples.items() if group >= low}

    def reopen(self, fence: int, group: int) -> bool:
        """Takes a closed group that has no gradient back to admitted, without samples. Says if it was closed."""
        self._check_controller(fence)
        if group < self.low or group not in self.closed:
            return False
        del self.closed[group]
        self.samples.pop(group, None)
        return True

    def scan(self, run_id: str = "") -> values.LedgerSnapshot:
        """What is held."""
        return values.LedgerSnapshot(
            low=self.low,
            committed=self.committed,
            closed=dict(self.closed),
            samples={g: {i: meta for i, (_, meta) in held.items()} for g, held in self.samples.items()},
            batches=dict(self.batches),
            bytes=sum(len(payload) for held in self.samples.values() for payload, _ in held.values()),
            trainer_fence=self.trainer_fence,
            controller_fence=self.controller_fence,
            run_id=run_id,
        )

    # ---- trainer

    def recover(self, fence: int, step: int) -> None:
        """A trainer starts from a checkpoint of `step`, which holds the batches of the steps below.

        It may be an older one: what was freed since is made again, once the controller assigns it again. A live trainer
        repeats this after a restart of the store.
        """
        self._check_trainer(fence)
        self.committed = min(step, self.committed)
        self.commit(fence, step)

    def take(self, fence: int, step: int) -> list[values.TakenGroup]:
        """The batch of `step`, tombstones in it included; nothing while it isn't assigned or a group of it is open.

        The step is the trainer's alone: what was delivered before has no say.
        """
        self._check_trainer(fence)
        groups = self.batches.get(step, ())
        outcomes = [self.closed.get(group, values.TRAINED) for group in groups]
        if values.TRAINED in outcomes:
            return []
        return [self._taken(group, outcome) for group, outcome in zip(groups, outcomes, strict=True)]

    def peek(self, groups: Sequence[int]) -> list[values.TakenGroup]:
        """These complete groups, in a batch or in none; those whose samples are gone are left out."""
        return [self._taken(group, values.COMPLETE) for group in groups if self.samples.get(group)]

    def commit(self, fence: int, step: int) -> int:
        """A checkpoint holds the batches of the steps below `step`: frees them. Returns the steps committed."""
        self._check_trainer(fence)
        for freed in [held for held in self.batches if held < step]:
            self._free(freed)
        self.committed = max(self.committed, step)
        return self.committed

    # ---- shared pieces

    def _taken(self, group: int, outcome: str) -> values.TakenGroup:
        held = sorted(self.samples.get(group, {}).items())
        return values.TakenGroup(
            group,
            outcome,
            tuple(payload for _, (payload, _) in held),
            tuple(index for index, _ in held),
            tuple(meta for _, (_, meta) in held),
        )

    def _free(self, step: int) -> None:
        for group in self.batches.pop(step):
            if group >= self.low:
                self.samples.pop(group, None)
                self.closed[group] = values.TRAINED

    def _check_trainer(self, fence: int) -> None:
        if fence < self.trainer_fence:
            raise fenced("trainer", fence, self.trainer_fence)
        self.trainer_fence = fence

    def _check_controller(self, fence: int) -> None:
        if fence < self.controller_fence:
            raise fenced("controller", fence, self.controller_fence)
        self.controller_fence = fence


def fenced(role: str, mine: int, stored: int) -> FencedError:
    """The refusal of an old incarnation."""
    return FencedError(
        f"{role} fence {mine} is over: fence {stored} is alive", fix="stop this process; the newer one goes on"
    )
