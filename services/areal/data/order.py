"""Dataset order: the row that a prompt group or a fixed step trains, by one permutation of the rows an epoch.

Owns the order of the data. Pure integer arithmetic, so it is the same on every machine and in every Python, costs no
memory, and any group's row is known without the groups before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from areal.spec.supervised import FixedRowsBlock

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
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
class FixedOrder:
    """The rows of a training on fixed rows: which ones each step uses, in which epoch.

    A position counts the rows that are used, repetitions included: 0, 1, 2, … Step s has the positions from s·B on,
    the last step what is left.
    """

    rows: int
    batch: int
    positions: int  # of the whole run
    seed: int

    @classmethod
    def of(cls, block: FixedRowsBlock, rows: int, seed: int) -> FixedOrder:
        """The order that a job asks for."""
        return cls(rows, block.batch_size, block.positions(rows), seed)

    @property
    def steps(self) -> int:
        return -(-self.positions // self.batch)

    def span(self, step: int) -> range:
        """The positions of a step."""
        return range(step * self.batch, min((step + 1) * self.batch, self.positions))

    def row(self, position: int) -> int:
        """The dataset's row at a position."""
        return row_of(position, self.rows, self.seed)

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
