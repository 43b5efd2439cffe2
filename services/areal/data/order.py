"""Dataset order: the row that a prompt group or a fixed step trains, by one permutation of the rows an epoch.

Owns the order of the data, of one source or of several with weights. Pure integer arithmetic, so it is the same on
every machine and in every Python, costs no memory, and any group's row is known without the groups before it.
"""

import math
import random
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from areal.spec.sources import DifficultyPools
from areal.spec.supervised import FixedRowsBlock

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_LONGEST_CYCLE = 4096  # places; shares that need more are met to 1/4096
_ROUNDS = 8  # four are enough for an unpredictable Feistel network of large blocks; tiny datasets need more mixing


def row_of(group: int, size: int, seed: int) -> int:
    """The row of prompt group `group` in a dataset of `size` rows. Every `size` groups visit each row once."""
    if size <= 0:
        raise ValueError("a dataset has at least one row")
    if group < 0:
        raise ValueError("groups count from 0")
    epoch, position = divmod(group, size)
    if size == 1:
        return 0
    bits = max(2, (size - 1).bit_length())
    keys = _round_keys(seed, epoch)
    value = position
    while True:  # walk the cycle until the value is a row; the domain is less than twice (or 4 for tiny) the size
        value = _permute(value, bits, keys)
        if value < size:
            return value


@dataclass(frozen=True)
class SourceShare:
    """One of a dataset's sources: how many rows it has, and its weight among all."""

    rows: int
    weight: float = 1.0


@dataclass(frozen=True)
class SourceVisit:
    """A prompt group's source, and which of that source's visits it is: 0, 1, 2, …"""

    source: int
    number: int


def cycle_of(weights: Sequence[float]) -> tuple[int, ...]:
    """The sources at the places of one cycle, which repeats: at each place the one that is furthest behind its weight.

    The shortest cycle that meets the weights exactly, if one of at most 4,096 places does. Raises ValueError where a
    source's weight is too small for a place.
    """
    parts = [Fraction(repr(weight)) for weight in weights]
    whole = [int(part * math.lcm(*(other.denominator for other in parts))) for part in parts]
    total = sum(whole)
    length = min(total // math.gcd(*whole), _LONGEST_CYCLE)
    given = [0] * len(whole)
    places = []
    for place in range(1, length + 1):
        behind = [weight * place - total * count for weight, count in zip(whole, given, strict=True)]
        chosen = behind.index(max(behind))
        given[chosen] += 1
        places.append(chosen)
    if 0 in given:
        raise ValueError(f"source {given.index(0)} has a share of less than 1/{_LONGEST_CYCLE}")
    return tuple(places)


@dataclass(frozen=True)
class RowOrder:
    """The rows of a dataset in the order of prompt groups; rows are numbered through its sources, one after another."""

    sources: tuple[SourceShare, ...]
    seed: int

    @property
    def rows(self) -> int:
        """Of all sources."""
        return sum(source.rows for source in self.sources)

    def row(self, group: int) -> int:
        """The row of prompt group `group`, counted from 0."""
        visit = self.visit(group)
        return self.row_at(visit.source, visit.number)

    def visit(self, group: int) -> SourceVisit:
        """The group's source and visit: with L places a cycle, group g has place g mod L."""
        if group < 0:
            raise ValueError("groups count from 0")
        cycles, at = divmod(group, len(self._cycle))
        source = self._cycle[at]
        return SourceVisit(source, cycles * self._places[source] + self._before[at])

    def visits(self, source: int, groups: int) -> int:
        """How many of the first `groups` groups are of a source."""
        cycles, at = divmod(groups, len(self._cycle))
        return cycles * self._places[source] + self._cycle[:at].count(source)

    def row_at(self, source: int, position: int) -> int:
        """The row at a position of one source's own order."""
        first = sum(other.rows for other in self.sources[:source])
        seed = self.seed if source == 0 else _mix(self.seed ^ _mix(source))
        return first + row_of(position, self.sources[source].rows, seed)

    @cached_property
    def _cycle(self) -> tuple[int, ...]:
        return cycle_of([source.weight for source in self.sources])

    @cached_property
    def _places(self) -> list[int]:
        return [self._cycle.count(source) for source in range(len(self.sources))]

    @cached_property
    def _before(self) -> list[int]:
        """How many places of the same source the cycle has before each place."""
        seen = [0] * len(self.sources)
        before = []
        for source in self._cycle:
            before.append(seen[source])
            seen[source] += 1
        return before


def by_rounds(expected: Sequence[float], batch: int, seed: int) -> tuple[int, ...]:
    """An order of a window's places in which those of a batch expect answers of about the same length.

    `expected` are tokens by place, inf where nobody knows; those come together, as if they were the longest. Batches
    follow each other by `seed`, so that steps don't grow shorter through a window. Where nothing is known the order
    stays as it is.
    """
    if all(math.isinf(tokens) for tokens in expected):
        return tuple(range(len(expected)))
    order = sorted(range(len(expected)), key=lambda place: -expected[place])
    rounds = [order[first : first + batch] for first in range(0, len(order), batch)]
    random.Random(seed).shuffle(rounds)
    return tuple(place for each in rounds for place in each)


class RoundsOrder:
    """A job's order with windows of prompt groups whose rows change places, as a journal says; each row stays once."""

    def __init__(self, order: RowOrder) -> None:
        self._order = order
        self._firsts: list[int] = []
        self._windows: list[array[int]] = []

    def row(self, group: int) -> int:
        """The row of prompt group `group`."""
        at = bisect_right(self._firsts, group) - 1
        if at >= 0 and (place := group - self._firsts[at]) < len(self._windows[at]):
            group = self._firsts[at] + self._windows[at][place]
        return self._order.row(group)

    def arrange(self, first: int, places: Sequence[int]) -> None:
        """Group `first + i` has the row of place `places[i]` of the window that begins at `first`. Told again is the
        same; windows come one after another. Raises ValueError where a row would be lost or doubled."""
        if sorted(places) != list(range(len(places))):
            raise ValueError(f"the window of group {first} doesn't have each of its {len(places)} rows once")
        if self._firsts and first < self._firsts[-1] + len(self._windows[-1]):
            if first == self._firsts[-1] and list(places) == list(self._windows[-1]):
                return
            raise ValueError(f"the window of group {first} begins within the one of group {self._firsts[-1]}")
        self._firsts.append(first)
        self._windows.append(array("L", places))


@dataclass(frozen=True)
class FixedOrder:
    """The rows of a training on fixed rows: which ones each step uses, in which epoch.

    A position counts the rows that are used, repetitions included: 0, 1, 2, … Step s has the positions from s·B on,
    the last step what is left. With several sources an epoch is as many positions as there are rows.
    """

    order: RowOrder
    batch: int
    positions: int  # of the whole run

    @classmethod
    def of(cls, block: FixedRowsBlock, order: RowOrder) -> "FixedOrder":
        """The order that a job asks for."""
        return cls(order, block.batch_size, block.positions(order.rows))

    @property
    def rows(self) -> int:
        """Of the dataset."""
        return self.order.rows

    @property
    def sources(self) -> tuple[int, ...]:
        """Rows of each of the dataset's sources."""
        return tuple(source.rows for source in self.order.sources)

    @property
    def steps(self) -> int:
        return -(-self.positions // self.batch)

    def span(self, step: int) -> range:
        """The positions of a step."""
        return range(step * self.batch, min((step + 1) * self.batch, self.positions))

    def row(self, position: int) -> int:
        """The dataset's row at a position."""
        return self.order.row(position)

    def epoch(self, step: int) -> float:
        """How many times the dataset was used when the step is done."""
        return self.span(step).stop / self.rows


def _round_keys(seed: int, epoch: int) -> list[int]:
    state = _mix((seed & _MASK) ^ _mix(epoch + _GOLDEN))
    keys = []
    for _ in range(_ROUNDS):
        state = (state + _GOLDEN) & _MASK
        keys.append(_mix(state))
    return keys


def _permute(value: int, bits: int, keys: list[int]) -> int:
    """A Feistel network on `bits` bits; halves of unequal width swap their widths each round."""
    right_bits = bits // 2
    left_bits = bits - right_bits
    left, right = value >> right_bits, value & ((1 << right_bits) - 1)
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & ((1 << left_bits) - 1))
        left_bits, right_bits = right_bits, left_bits
    return left << right_bits | right


def _mix(value: int) -> int:
    """The finaliser of splitmix64: every input bit reaches every output bit."""
    value &= _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


# ---- Difficulty pools: the order of rows without those that the policy has learned, or can't learn yet
# Pure: it is told what was measured and from which group on that counts, in a journal's order, and answers the same
# from the same journal, whenever a process that read it began.


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
