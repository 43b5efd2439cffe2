"""Paired inputs and outputs, as most competitive-programming sets have them, to a suite.

Without a function's name they are standard input and output. With one, inputs are arguments: a list of them, or text
with one JSON value a line. The quirks of sets that went through JSON stand here, each behind a word of `Quirks`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from areal_judge.judge.formats.fields import refuse
from areal_judge.judge.values import CallCase, CallSuite, Checker, StdioCase, StdioSuite, Suite
from areal_judge.sandbox.values import DEFAULT_LIMITS, Limits

PRELUDE = """\
import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from itertools import accumulate, chain, combinations, count, cycle, groupby, islice, permutations, product, repeat
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, lcm, log, log2, pi, prod, sqrt
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union
"""
_INTEGER = re.compile(r"-?\d{1,18}")


@dataclass(frozen=True)
class Quirks:
    """What a data set does to values."""

    integer_keys: bool = False  # dictionaries had integers as keys, which JSON made strings
    wrapped_outputs: bool = False  # expected values stand in one list more, when all of them do


NO_QUIRKS = Quirks()
TOKENS = Checker()


@dataclass(frozen=True)
class Pairs:
    """The tests of a problem as a row holds them. `at` names their place in messages."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    at: str
    entry_point: str = ""


def suite_of_pairs(
    pairs: Pairs,
    *,
    checker: Checker = TOKENS,
    limits: Limits = DEFAULT_LIMITS,
    quirks: Quirks = NO_QUIRKS,
    preamble: str = "",
    numpy: bool = False,
) -> Suite:
    """A CallSuite when there is an entry point, else a StdioSuite. Raises DataError.

    `preamble`: what the set's own grader puts before every program; `numpy`: whether it offers numpy.
    """
    if len(pairs.inputs) != len(pairs.outputs):
        refuse(
            pairs.at,
            f"{len(pairs.inputs)} inputs and {len(pairs.outputs)} outputs",
            "give one expected output an input",
        )
    if not pairs.inputs:
        refuse(pairs.at, "no cases: every program would pass", "add cases, or drop the row")
    numbered = list(enumerate(zip(pairs.inputs, pairs.outputs, strict=True)))
    if not pairs.entry_point:
        stdio = [
            StdioCase(stream(given, f"{pairs.at}.inputs[{i}]"), stream(due, f"{pairs.at}.outputs[{i}]"))
            for i, (given, due) in numbered
        ]
        return StdioSuite(tuple(stdio), checker, limits, needs_numpy=numpy, prelude=preamble)
    calls = [
        _call(given, due, quirks, f"{pairs.at}.inputs[{i}]", f"{pairs.at}.outputs[{i}]") for i, (given, due) in numbered
    ]
    as_lists = not any(isinstance(given, str) for given in pairs.inputs)
    wrapped = all(isinstance(due, list) and len(due) == 1 for due in pairs.outputs)
    return CallSuite(
        pairs.entry_point,
        tuple(calls),
        checker,
        limits,
        prelude=preamble or PRELUDE,
        needs_numpy=numpy,
        unwrap_single=quirks.wrapped_outputs and as_lists and wrapped,
    )


def stream(value: Any, at: str) -> str:
    """Standard input or output: text, or a list of lines, whose lines may be lists of words."""
    if isinstance(value, str):
        return value
    if _is_number(value):
        return f"{value}\n"
    if isinstance(value, list | tuple):
        return "".join(f"{_line(line, f'{at}[{i}]')}\n" for i, line in enumerate(value))
    return refuse(at, f"a text or a list of lines is due, not {type(value).__name__}", "write it as one string")


def _line(value: Any, at: str) -> str:
    if isinstance(value, str):
        return value.removesuffix("\n")
    if _is_number(value):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(word, str) or _is_number(word) for word in value):
        return " ".join(str(word) for word in value)
    return refuse(at, f"a line of text is due, not {type(value).__name__}", "write the lines as strings")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _call(given: Any, due: Any, quirks: Quirks, given_at: str, due_at: str) -> CallCase:
    arguments = arguments_of(given, given_at)
    expected = json_value(due, due_at) if isinstance(given, str) and isinstance(due, str) else due
    if quirks.integer_keys:
        arguments = [_with_integer_keys(argument) for argument in arguments]
        expected = _with_integer_keys(expected)
    return CallCase(tuple(arguments), expected)


def arguments_of(value: Any, at: str) -> list[Any]:
    """A list of arguments, or text with one JSON value a line (or one that takes several lines)."""
    if isinstance(value, list | tuple):
        return list(value)
    if not isinstance(value, str):
        refuse(at, f"a list of arguments is due, not {type(value).__name__}", "write [first, second, …]")
    lines = [line for line in value.split("\n") if line.strip()]
    try:
        return [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        return [json_value(value, at)]


def json_value(text: str, at: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        refuse(at, "nested too deeply", "drop the case")
    except ValueError as error:
        refuse(at, f"no JSON value: {error}", "write values of function tests as JSON, one a line")


def _with_integer_keys(value: Any) -> Any:
    if isinstance(value, Mapping) and value and all(isinstance(key, str) and _INTEGER.fullmatch(key) for key in value):
        return {int(key): item for key, item in value.items()}
    return value
