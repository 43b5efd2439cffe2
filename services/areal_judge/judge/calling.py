"""Judges a CallSuite: the program's function is called once a case, its results are compared here."""

import asyncio
import math
import time
from typing import Any

from areal.errors import DataError

from areal_judge.judge.codec import CodecError, encode
from areal_judge.judge.program import IN_THREAD_BYTES, CallResult, CaseFailure, EncodedCall, Program, call_of, opened
from areal_judge.judge.record import AttemptRecord
from areal_judge.judge.values import CallCase, CallSuite, CaseResult, Checker, Status, Submission
from areal_judge.sandbox.host.runner import Sandbox

_SHOWN_CHARS = 200
_MAX_LOST = 20  # processes that a program may lose before the rest of its cases is skipped


async def judge_calls(sandbox: Sandbox, submission: Submission, suite: CallSuite, record: AttemptRecord) -> None:
    """Adds the cases to the record. Raises DataError for a suite that can't be judged, InfraError."""
    lost = 0
    while not record.over and lost < _MAX_LOST:
        before = len(record.cases)
        left = suite.cases[before:]
        await _session(sandbox, submission, suite, left[:1] if suite.isolate_cases else left, record)
        lost += not suite.isolate_cases


async def _session(
    sandbox: Sandbox, submission: Submission, suite: CallSuite, cases: tuple[CallCase, ...], record: AttemptRecord
) -> None:
    """One process, until its cases are through or it is lost."""
    calls = _encoded(cases, len(record.cases))
    if record.left_s <= 0:
        record.out_of_time()
        return
    async with opened(
        sandbox, submission.source, suite.entry_point, suite.prelude, suite.limits,
        calls=len(cases), left_s=record.left_s, longest=max(len(call.frame) for call in calls), numpy=suite.needs_numpy,
    ) as program:  # fmt: skip
        alive = await program.loaded(suite.limits, record)
        for case, call in zip(cases, calls, strict=True):
            if not alive or record.over:
                break
            alive = await _case(program, suite, case, call, record)
        if alive and record.may_pass and (failure := await program.leave()):
            record.flags |= failure.flags
            record.fail_last(failure.case)
        record.ended_with(await program.end())


async def _case(program: Program, suite: CallSuite, case: CallCase, call: EncodedCall, record: AttemptRecord) -> bool:
    """Runs one case; whether the program can go on."""
    if record.left_s <= 0:
        record.out_of_time()
        return False
    outcome = await program.call(call, min(suite.limits.wall_s, record.left_s))
    if isinstance(outcome, CaseFailure):
        record.spent_s += outcome.case.wall_s
        record.flags |= outcome.flags
        record.add(outcome.case)
        return outcome.alive
    record.spent_s += outcome.wall_s
    started = time.monotonic()
    record.add(await _compared(outcome, suite, case, len(call.frame), record))
    record.judge_s += time.monotonic() - started
    return True


async def _compared(
    answer: CallResult, suite: CallSuite, case: CallCase, size: int, record: AttemptRecord
) -> CaseResult:
    try:
        if max(size, answer.size) > IN_THREAD_BYTES:
            right = await asyncio.to_thread(_right, answer.value, case.expected, suite)
        else:
            right = _right(answer.value, case.expected, suite)
    except CodecError as error:
        raise DataError(f"an expected value can't be compared: {error}", fix="use plain builtin values") from None
    if right:
        return CaseResult(0, Status.PASSED, wall_s=answer.wall_s)
    detail = f"wrong result {_shown(answer.value)}"
    if record.options.reveal:
        detail += f", expected {_shown(case.expected)}, arguments {_shown(case.arguments)}"
    return CaseResult(0, Status.WRONG_ANSWER, wall_s=answer.wall_s, detail=detail)


def _right(value: object, expected: object, suite: CallSuite) -> bool:
    if same(value, expected, suite.checker):
        return True
    wrapped = suite.unwrap_single and type(expected) is list and len(expected) == 1
    return wrapped and same(value, expected[0], suite.checker)  # type: ignore[index]


def _encoded(cases: tuple[CallCase, ...], first: int) -> list[EncodedCall]:
    calls = []
    for index, case in enumerate(cases, first):
        try:
            calls.append(call_of(case.arguments, case.keywords))
        except CodecError as error:
            raise DataError(
                f"case {index}: arguments can't be carried: {error}", fix="use plain builtin values"
            ) from None
    return calls


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"a long {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


# ---- Equality of a call's result and the expected value. A pure function of two plain values
# Owns what "equal" means for function results: a bool is no number, 1 and 1.0 are the same number, not-a-number equals
# nothing unless asked, floats are exact unless the checker gives a tolerance. Both values are plain builtins (the codec
# made one of them), so that no comparison runs code of a program. Nothing here hashes the program's values: unordered
# comparison sorts, and costs n log n whatever the values are.


MAX_MATCHING = 400  # elements to pair one by one when a tolerance leaves them without an order


def same(result: Any, expected: Any, checker: Checker) -> bool:
    """Whether `result` counts as `expected`. Raises CodecError when `expected` is not plain: the suite's fault."""
    encode(expected)
    if checker.unordered and isinstance(expected, list | tuple | set | frozenset):
        if checker.tuples_are_lists:
            alike = isinstance(result, list | tuple | set | frozenset)
        else:
            alike = _family(result, checker) == _family(expected, checker)
        return alike and _multiset(list(result), list(expected), checker)
    return _same(result, expected, checker)


def _same(a: Any, b: Any, checker: Checker) -> bool:
    family = _family(a, checker)
    if family != _family(b, checker):
        return False
    if family == "number":
        return _numbers(a, b, checker)
    if family == "complex":
        return _numbers(a.real, b.real, checker) and _numbers(a.imag, b.imag, checker)
    if family in ("list", "tuple"):
        return len(a) == len(b) and all(_same(x, y, checker) for x, y in zip(a, b, strict=True))
    if family == "set":
        return _multiset(list(a), list(b), checker)
    if family == "dict":
        return _dicts(a, b, checker)
    return bool(a == b)


def _family(value: Any, checker: Checker) -> str:
    kind = type(value)
    if kind in (int, float) or (kind is bool and checker.bool_is_int):
        return "number"
    if kind is tuple and checker.tuples_are_lists:
        return "list"
    return "set" if kind is frozenset else kind.__name__


def _numbers(a: float, b: float, checker: Checker) -> bool:
    if a != a or b != b:
        return checker.nan_equal and a != a and b != b
    if a == b:
        return True
    if (isinstance(a, int) and isinstance(b, int)) or not (checker.absolute or checker.relative):
        return False
    try:
        x, y = float(a), float(b)
    except OverflowError:
        return False
    if math.isinf(x) or math.isinf(y):
        return False
    return abs(x - y) <= checker.absolute + checker.relative * abs(y)  # numpy.allclose's bound


def _dicts(a: dict[Any, Any], b: dict[Any, Any], checker: Checker) -> bool:
    """Keys are compared exactly, so that sorting pairs them."""
    if len(a) != len(b):
        return False
    mine = sorted(((_key(key, checker), value) for key, value in a.items()), key=lambda pair: pair[0])
    theirs = sorted(((_key(key, checker), value) for key, value in b.items()), key=lambda pair: pair[0])
    return all(x[0] == y[0] and _same(x[1], y[1], checker) for x, y in zip(mine, theirs, strict=True))


def _multiset(a: list[Any], b: list[Any], checker: Checker) -> bool:
    if len(a) != len(b):
        return False
    if not checker.nan_equal and (_has_nan(a) or _has_nan(b)):
        return False
    mine = sorted(((_key(value, checker), value) for value in a), key=lambda pair: pair[0])
    theirs = sorted(((_key(value, checker), value) for value in b), key=lambda pair: pair[0])
    if not (checker.absolute or checker.relative):
        return all(x[0] == y[0] for x, y in zip(mine, theirs, strict=True))
    left, right = _without_common(mine, theirs)
    return _matched(left, right, checker)


def _without_common(a: list[tuple[bytes, Any]], b: list[tuple[bytes, Any]]) -> tuple[list[Any], list[Any]]:
    """What two sorted lists don't share exactly."""
    left: list[Any] = []
    right: list[Any] = []
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i][0] == b[j][0]:
            i, j = i + 1, j + 1
        elif a[i][0] < b[j][0]:
            left.append(a[i][1])
            i += 1
        else:
            right.append(b[j][1])
            j += 1
    return left + [value for _, value in a[i:]], right + [value for _, value in b[j:]]


def _matched(a: list[Any], b: list[Any], checker: Checker) -> bool:
    """Pairs what is close. Numbers pair best in their order; other values are paired greedily, up to a bound."""
    if all(type(value) in (int, float) and value == value for value in (*a, *b)):
        return all(_numbers(x, y, checker) for x, y in zip(sorted(a), sorted(b), strict=True))
    if len(a) > MAX_MATCHING:
        return False
    rest = list(b)
    for value in a:
        found = next((index for index, other in enumerate(rest) if _same(value, other, checker)), None)
        if found is None:
            return False
        rest.pop(found)
    return True


def _has_nan(value: Any) -> bool:
    kind = type(value)
    if kind in (float, complex):
        return bool(value != value)
    if kind is dict:
        return any(_has_nan(key) or _has_nan(item) for key, item in value.items())
    return kind in (list, tuple, set, frozenset) and any(_has_nan(item) for item in value)


def _key(value: Any, checker: Checker) -> bytes:
    """Bytes that two values share exactly when they are the same without tolerance."""
    kind = type(value)
    if kind is bool and checker.bool_is_int:
        return encode(int(value))
    if kind is float:
        if value != value:
            return b"n"  # one of its many bit patterns
        return encode(int(value)) if not math.isinf(value) and value == int(value) else encode(value)
    if kind is complex:
        return b"c" + _key(value.real, checker) + _key(value.imag, checker)
    if kind is list or kind is tuple:
        tag = b"l" if kind is list or checker.tuples_are_lists else b"t"
        return tag + _count(value) + b"".join(_key(item, checker) for item in value)
    if kind in (set, frozenset):
        return b"S" + _count(value) + b"".join(sorted(_key(item, checker) for item in value))
    if kind is dict:
        pairs = [_key(key, checker) + _key(item, checker) for key, item in value.items()]
        return b"d" + _count(value) + b"".join(sorted(pairs))
    return encode(value)


def _count(value: Any) -> bytes:
    return len(value).to_bytes(4, "little")
