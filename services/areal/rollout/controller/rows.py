"""Dataset cursor: the row of a prompt group or of an evaluation.

Owns the dataset cursor: g decides, with pools or rounds what the journal says of them, too; nothing else.
"""

import logging
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import orjson

from areal.data.order import PooledOrder, RoundsOrder
from areal.data.snapshot import Snapshot
from areal.errors import DataError
from areal.ledger.journal import MeasuredGroup, PoolChange
from areal.rollout.controller.decisions import JournalBatch, JournalPools, JournalRounds, JournalTombstone
from areal.spec.sources import DifficultyPools

log = logging.getLogger(__name__)


class PreparedRows:
    """The prepared training rows in the job's order, and the evaluation rows in theirs."""

    def __init__(
        self,
        train: Path,
        evaluation: Path | None,
        seed: int,
        pools: DifficultyPools | None = None,
        *,
        rounds: bool = False,
    ) -> None:
        self._train = Snapshot(train)
        self._evaluation = Snapshot(evaluation) if evaluation is not None else None
        order = self._train.order(seed)
        self._pooled = PooledOrder(order, pools) if pools is not None else None
        self._rounds = RoundsOrder(order) if rounds else None
        self._order = self._pooled or self._rounds or order

    @property
    def longest(self) -> int:
        """Bytes of the longest training row, as JSON."""
        return self._train.longest

    def row(self, group: int) -> bytes:
        """The row of prompt group `group`, as JSON."""
        return self._train.row_json(self._order.row(group))

    def place(self, group: int) -> str:
        """Place of the group's row, for people."""
        return self._train.place(self._order.row(group))

    def replay(
        self, told: Sequence[MeasuredGroup | PoolChange], rounds: Sequence[tuple[int, Sequence[int]]] = ()
    ) -> None:
        """What a journal says of pools and of rounds, in its order."""
        if self._rounds is not None:
            for first, places in rounds:
                self._rounds.arrange(first, places)
        if self._pooled is None:
            return
        for each in told:
            if isinstance(each, MeasuredGroup):
                self._pooled.measured(each.group, each.passes, each.tries)
            else:
                self._pooled.judge(each.committed, each.from_group)
                log.info("pools from group %d on: %s", each.from_group, dict(self._pooled.counts()))

    def journalled(self, entries: Sequence[object]) -> None:
        """The same of entries that are on disk now."""
        for entry in entries:
            match entry:
                case JournalTombstone(group=group, passes=passes, tries=tries) if tries:
                    self.replay([MeasuredGroup(group, passes, tries)])
                case JournalBatch(measured=measured):
                    self.replay([MeasuredGroup(*counts) for counts in measured])
                case JournalPools(committed, from_group):
                    self.replay([PoolChange(committed, from_group)])
                case JournalRounds(first, places):
                    self.replay((), [(first, places)])

    def evaluation_row(self, row: int) -> bytes:
        """Row `row` of the evaluation set, as JSON."""
        assert self._evaluation is not None
        return self._evaluation.row_json(row)

    def with_images(self, count: int, most: int) -> tuple[int, ...]:
        """The first of the `count` evaluation rows that have images, `most` at most."""
        found = (row for row in range(count) if b'"data:image/' in self.evaluation_row(row))
        return tuple(islice(found, most))

    def evaluation_sets(self, column: str, count: int) -> tuple[str, ...]:
        """The set of each of the first `count` evaluation rows. Raises DataError for a row that names none."""
        names = []
        for row in range(count):
            name = orjson.loads(self.evaluation_row(row)).get(column)
            if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
                raise DataError(
                    f"held-out row {row} names no set in its column {column!r}",
                    fix="give every row of dataset.evaluation a name there, or leave out evaluation.setColumn",
                )
            names.append(str(name))
        return tuple(names)

    def evaluation_rows(self, wanted: int | None) -> int:
        """Number of rows of an evaluation; all of them when None are wanted."""
        if self._evaluation is None:
            return 0
        return len(self._evaluation) if wanted is None else min(wanted, len(self._evaluation))
