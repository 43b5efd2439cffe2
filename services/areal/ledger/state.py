"""The ledger's transitions, as a pure model.

Owns what each operation means: the Lua scripts do the same, one by one, and are tested against this. Every operation is
atomic, idempotent and, except `add_sample`, fenced: an older fence is refused, a newer one is adopted, so a store that
lost its tail heals. It never blocks, never reads a clock and never forgets a group that is neither consumed nor
reopened.
"""

from __future__ import annotations

from areal.errors import FencedError
from areal.ledger.values import (
    COMPLETE,
    REPLACES_COMPLETE,
    AddOutcome,
    AddResult,
    CloseResult,
    CloseStatus,
    LedgerSnapshot,
    NewSample,
    SampleMeta,
    TakenGroup,
    TombstoneReason,
)

__all__ = [
    "COMPLETE",
    "REPLACES_COMPLETE",
    "AddOutcome",
    "AddResult",
    "CloseResult",
    "CloseStatus",
    "LedgerModel",
    "LedgerSnapshot",
    "NewSample",
    "SampleMeta",
    "TakenGroup",
    "TombstoneReason",
]


class LedgerModel:
    """A whole ledger in memory.

    Invariants: nothing below `low` is held; `ready` is strictly increasing and below `frontier`; every ready group is
    closed; a tombstone holds no samples; `low ≤ frontier`.
    """

    def __init__(self) -> None:
        self.trainer_fence = 0
        self.controller_fence = 0
        self.low = 0
        self.frontier = 0
        self.closed: dict[int, str] = {}
        self.samples: dict[int, dict[int, tuple[bytes, SampleMeta]]] = {}
        self.ready: list[int] = []

    def fork(self) -> LedgerModel:
        """A copy, for example to go back to after a lost tail."""
        other = type(self)()
        other.trainer_fence, other.controller_fence = self.trainer_fence, self.controller_fence
        other.low, other.frontier = self.low, self.frontier
        other.closed = dict(self.closed)
        other.samples = {group: dict(held) for group, held in self.samples.items()}
        other.ready = list(self.ready)
        return other

    # ---- worker

    def add_sample(self, group: int, index: int, payload: bytes, meta: SampleMeta) -> AddResult:
        """Stores a sample once; only `close` decides what its group becomes."""
        held = self.samples.get(group, {}).get(index)
        stored = held[1] if held else None
        if group < self.low or group in self.closed:
            return AddResult(AddOutcome.FINISHED, stored)
        if stored is not None:
            return AddResult(AddOutcome.DUPLICATE, stored)
        self.samples.setdefault(group, {})[index] = (payload, meta)
        return AddResult(AddOutcome.STORED, meta)

    # ---- controller

    def claim(self, fence: int) -> None:
        """A controller starts: older ones are refused from now on."""
        self._check_controller(fence)
        self._append()

    def close(self, fence: int, group: int, outcome: str, group_size: int, at_least: int | None = None) -> CloseResult:
        """Ends the generation of a group, completely or by a tombstone, and lets the frontier pass consecutive groups.

        Complete needs `group_size` samples, or `at_least` of them where a deadline passed. A tombstone drops the
        samples. Only poison and ended may follow on complete.
        """
        self._check_controller(fence)
        if group < self.low:
            return CloseResult(CloseStatus.ALREADY)
        present = self.closed.get(group)
        if present is not None and not (present == COMPLETE and outcome in REPLACES_COMPLETE):
            return CloseResult(CloseStatus.ALREADY, present)
        if outcome == COMPLETE:
            held = self.samples.get(group, {})
            missing = tuple(i for i in range(group_size) if i not in held)
            if group_size - len(missing) < (group_size if at_least is None else at_least):
                return CloseResult(CloseStatus.MISSING, None, missing)
        else:
            self.samples.pop(group, None)
        self.closed[group] = outcome
        self._append()
        return CloseResult(CloseStatus.CLOSED, outcome)

    def advance(self, fence: int, cursor: int, trainer_fence: int | None = None) -> int:
        """After lost data: groups below the live trainer's cursor won't come again, so the frontier passes them.

        `trainer_fence` is the incarnation that told the cursor; if a newer one has recovered since, nothing happens.
        Returns the frontier.
        """
        self._check_controller(fence)
        if trainer_fence is None or trainer_fence >= self.trainer_fence:
            self.frontier = max(self.frontier, cursor)
            self._append()
        return self.frontier

    def reopen(self, fence: int, group: int) -> bool:
        """Takes a closed group that has no gradient back to admitted, without samples. Says if it was closed."""
        self._check_controller(fence)
        if group < self.low or group not in self.closed:
            return False
        del self.closed[group]
        self.samples.pop(group, None)
        if group < self.frontier:
            self.frontier = group
            self.ready = [g for g in range(self.low, group) if g in self.closed]
        return True

    def scan(self, run_id: str = "") -> LedgerSnapshot:
        """What is held."""
        return LedgerSnapshot(
            low=self.low,
            frontier=self.frontier,
            closed=dict(self.closed),
            samples={g: {i: meta for i, (_, meta) in held.items()} for g, held in self.samples.items()},
            bytes=sum(len(payload) for held in self.samples.values() for payload, _ in held.values()),
            trainer_fence=self.trainer_fence,
            controller_fence=self.controller_fence,
            run_id=run_id,
        )

    # ---- trainer

    def recover(self, fence: int, consumed: int, cursor: int | None = None) -> None:
        """A trainer starts from a checkpoint that holds every group below `consumed`.

        The low watermark may fall: groups already freed will be generated again. A live trainer repeats this after a
        restart of the store; what it told to have taken, up to `cursor`, is not generated again, and the frontier
        passes it.
        """
        self._check_trainer(fence)
        self._free(consumed)
        self.low = self.frontier = consumed
        self.ready = []
        self._append()
        if cursor is not None and cursor > self.frontier:
            self.frontier = cursor
            self._append()

    def take(self, fence: int, from_group: int, max_groups: int) -> list[TakenGroup]:
        """The next closed groups from `from_group` on, contiguous, tombstones included; the same answer every time.

        The position is the trainer's alone: neither the frontier nor what was delivered before has a say, so a hole
        below it, left by lost data, does not hold it up.
        """
        self._check_trainer(fence)
        taken: list[TakenGroup] = []
        for group in range(from_group, from_group + max_groups):
            outcome = self.closed.get(group)
            if outcome is None:
                break
            held = sorted(self.samples.get(group, {}).items())
            taken.append(
                TakenGroup(
                    group,
                    outcome,
                    tuple(payload for _, (payload, _) in held),
                    tuple(index for index, _ in held),
                    tuple(meta for _, (_, meta) in held),
                )
            )
        return taken

    def commit(self, fence: int, consumed: int) -> int:
        """A checkpoint holds every group below `consumed`: frees them. Returns the low watermark, which never falls
        here.
        """
        self._check_trainer(fence)
        if consumed > self.low:
            self._free(consumed)
            self.low = consumed
            self.ready = [g for g in self.ready if g >= consumed]
            self.frontier = max(self.frontier, consumed)
            self._append()
        return self.low

    # ---- shared pieces

    def _append(self) -> None:
        """Moves the frontier over consecutive closed groups, each into the ready stream."""
        while self.frontier in self.closed:
            self.ready.append(self.frontier)
            self.frontier += 1

    def _free(self, consumed: int) -> None:
        for group in [g for g in self.samples if g < consumed]:
            del self.samples[group]
        for group in [g for g in self.closed if g < consumed]:
            del self.closed[group]

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
