"""Classic BPF for system call filters: an assembler with labels, checks of arguments, a decision tree over numbers.

Pure. When a filter is installed the kernel runs it once for each call that it knows, later at each call whose arguments
count. Going down a tree of comparisons takes a seventh of the steps of going through a list of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALLOW = 0x7FFF0000
JEQ = 0x15
_LD_W_ABS = 0x20
_ALU_AND = 0x54
_JGE = 0x35
_JSET = 0x45
_RET = 0x06
_SHARED = 16  # ranges of a tree whose actions are given in one place: a branch reaches 255 instructions


@dataclass(frozen=True)
class _Jump:
    """An instruction whose branches are labels, or None for the next instruction."""

    code: int
    operand: int
    true: str | None = None
    false: str | None = None


class Assembler:
    """Instructions with labels; forward jumps only, as the kernel wants them."""

    def __init__(self) -> None:
        self._items: list[_Jump | str] = []
        self._labels = 0

    def label(self) -> str:
        self._labels += 1
        return f"l{self._labels}"

    def here(self, label: str) -> None:
        self._items.append(label)

    def add(self, code: int, operand: int, true: str | None = None, false: str | None = None) -> None:
        self._items.append(_Jump(code, operand, true, false))

    def load(self, offset: int) -> None:
        self.add(_LD_W_ABS, offset)

    def give(self, action: int) -> None:
        self.add(_RET, action)

    def assembled(self) -> bytes:
        """8 bytes an instruction. Raises struct.error where a branch would reach too far."""
        places: dict[str, int] = {}
        position = 0
        for item in self._items:
            if isinstance(item, str):
                places[item] = position
            else:
                position += 1
        out = bytearray()
        position = 0
        for item in self._items:
            if isinstance(item, str):
                continue
            position += 1
            true, false = (0 if target is None else places[target] - position for target in (item.true, item.false))
            out += struct.pack("=HBBI", item.code, true, false, item.operand)
        return bytes(out)


@dataclass(frozen=True)
class _Check:
    """One check of an argument: of its lower half, or with `wide` whether both halves are zero."""

    argument: int
    code: int
    values: tuple[int, ...]
    holds: bool  # the action is for an argument that one of the values fits; otherwise for one that none does
    action: int
    mask: int = 0xFFFFFFFF
    wide: bool = False


class Checks:
    """Checks of one call's arguments, in order; a call that none of them stops is allowed."""

    def __init__(self) -> None:
        self._checks: list[_Check] = []

    def if_any_bit(self, argument: int, bits: int, action: int) -> None:
        self._checks.append(_Check(argument, _JSET, (bits,), True, action))

    def unless_bit(self, argument: int, bits: int, action: int) -> None:
        self._checks.append(_Check(argument, _JSET, (bits,), False, action))

    def if_equal(self, argument: int, values: Sequence[int], action: int) -> None:
        self._checks.append(_Check(argument, JEQ, tuple(values), True, action))

    def unless_equal(self, argument: int, values: Sequence[int], action: int, mask: int = 0xFFFFFFFF) -> None:
        self._checks.append(_Check(argument, JEQ, tuple(values), False, action, mask))

    def unless_null(self, argument: int, action: int) -> None:
        self._checks.append(_Check(argument, JEQ, (0,), False, action, wide=True))

    def write(self, out: Assembler) -> None:
        for check in self._checks:
            self._write(out, check)
        out.give(ALLOW)

    def _write(self, out: Assembler, check: _Check) -> None:
        stop, on = out.label(), out.label()
        lower = 16 + 8 * check.argument  # its upper half is behind it: both processors are little-endian here
        if check.wide:
            out.load(lower + 4)
            out.add(JEQ, 0, false=stop)
        out.load(lower)
        if check.mask != 0xFFFFFFFF:
            out.add(_ALU_AND, check.mask)
        *earlier, last = check.values
        met, unmet = (stop, on) if check.holds else (on, stop)
        for value in earlier:
            out.add(check.code, value, true=met)
        out.add(check.code, last, true=met, false=unmet)
        out.here(stop)
        out.give(check.action)
        out.here(on)


Ranges = Sequence[tuple[int, int | Checks]]


def ranges(decided: Mapping[int, int | Checks], otherwise: int, newest: int) -> list[tuple[int, int | Checks]]:
    """Where in 0 … newest another decision begins, and which."""
    found: list[tuple[int, int | Checks]] = []
    for number in range(newest + 1):
        what = decided.get(number, otherwise)
        if not found or found[-1][1] != what:
            found.append((number, what))
    return found


def choose(out: Assembler, of: Ranges) -> None:
    """Writes the tree that decides by the number in the accumulator. Each range reaches to the next one's beginning."""
    if len(of) > _SHARED:
        middle = len(of) // 2
        upper = out.label()
        out.add(_JGE, of[middle][0], true=upper)
        choose(out, of[:middle])
        out.here(upper)
        choose(out, of[middle:])
        return
    ends: dict[int | Checks, str] = {}
    for _, what in of:
        if what not in ends:
            ends[what] = out.label()
    if len(of) > 1:
        _branch(out, of, ends)
    for what, label in ends.items():
        out.here(label)
        if isinstance(what, Checks):
            what.write(out)
        else:
            out.give(what)


def _branch(out: Assembler, of: Ranges, ends: Mapping[int | Checks, str]) -> None:
    """Writes the comparisons among two ranges or more."""
    middle = len(of) // 2
    halves = of[:middle], of[middle:]
    lower, upper = (ends[half[0][1]] if len(half) == 1 else out.label() for half in halves)
    out.add(_JGE, of[middle][0], true=upper, false=lower)
    for half, label in zip(halves, (lower, upper), strict=True):
        if len(half) > 1:
            out.here(label)
            _branch(out, half, ends)
