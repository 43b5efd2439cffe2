"""Difficulty pools: the order of rows without those that the policy has learned, or can't learn yet.

Owns which rows are left out, by the pass rates that were measured, and which row each prompt group has since. Pure:
it is told what was measured and from which group on that counts, in the order of a journal, and answers the same from
the same journal, whenever a process that read it began.
"""

from array import array
from collections import Counter
from dataclasses import dataclass

from areal.data.order import RowOrder
from areal.spec.sources import DifficultyPools

_FEWEST = 16  # at least one row of so many stays in, or the walk to the next one would be long


@dataclass(slots=True)
class _RowTally:
    """Samples of a row since it was judged last."""

    passes: int = 0
    tries: int = 0


class PooledOrder:
    """The order of a job with pools.

    A group walks its source's own order on to the next row that is not left out. Rows that are left out come back in
    some epochs of their source, and are judged again by what is measured then.
    """

    def __init__(self, order: RowOrder, rule: DifficultyPools) -> None:
        self._order = order
        self._rule = rule
        self._positions = [array("Q") for _ in order.sources]  # of each visit so far, in the source's own order
        self._measured: dict[int, tuple[int, int]] = {}  # group → passes, tries; not judged yet
        self._tallies: dict[int, _RowTally] = {}
        self._left_out: list[dict[int, str]] = [{} for _ in order.sources]  # row → pool; the oldest first
        self._from_group = 0  # what was judged last counts from this group on

    def row(self, group: int) -> int:
        """The row of prompt group `group`."""
        visit = self._order.visit(group)
        self._walk(visit.source, visit.number + 1)
        return self._order.row_at(visit.source, self._positions[visit.source][visit.number])

    def measured(self, group: int, passes: int, tries: int) -> None:
        """So many of a group's samples passed. Told again, the newer counts."""
        self._measured[group] = passes, tries

    def judge(self, committed: int, from_group: int) -> None:
        """A checkpoint holds every group below `committed`: what they measured counts from `from_group` on."""
        if from_group < self._from_group:
            raise ValueError("pools change forwards")
        self._from_group = from_group
        for source, positions in enumerate(self._positions):
            visits = self._order.visits(source, from_group)
            self._walk(source, visits)
            del positions[visits:]
        for group in sorted(group for group in self._measured if group < committed):
            self._judge_one(group, *self._measured.pop(group))
        for share, left_out in zip(self._order.sources, self._left_out, strict=True):
            most = share.rows - -(-share.rows // _FEWEST)
            while len(left_out) > most:
                del left_out[next(iter(left_out))]

    def counts(self) -> Counter[str]:
        """How many rows are left out, by pool."""
        return Counter(pool for left_out in self._left_out for pool in left_out.values())

    def _judge_one(self, group: int, passes: int, tries: int) -> None:
        source, row, rule = self._order.visit(group).source, self.row(group), self._rule
        tally = self._tallies.setdefault(row, _RowTally())
        tally.passes, tally.tries = tally.passes + passes, tally.tries + tries
        if tally.tries < rule.min_tries:
            return
        rate = tally.passes / tally.tries
        del self._tallies[row]
        self._left_out[source].pop(row, None)
        if rate >= rule.easy_from:
            self._left_out[source][row] = "easy"
        elif rule.hard_up_to is not None and rate <= rule.hard_up_to:
            self._left_out[source][row] = "hard"

    def _walk(self, source: int, visits: int) -> None:
        """Find the positions of a source's first `visits` visits."""
        positions, left_out, rows = self._positions[source], self._left_out[source], self._order.sources[source].rows
        position = positions[-1] + 1 if positions else 0
        while len(positions) < visits:
            again = self._rule.revisit_epochs and (position // rows) % self._rule.revisit_epochs == 0
            if again or not left_out or self._order.row_at(source, position) not in left_out:
                positions.append(position)
            position += 1
