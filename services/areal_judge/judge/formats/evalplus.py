"""EvalPlus (Liu et al. 2023), HumanEval+ and MBPP+ as it publishes them: `base_input`, `plus_input`, `atol`.

Expected values come with the row (`base_output`, `plus_output`, or `expected_output` for both), or from its reference
solution, which then runs beside the tests, away from the program. Floats compare as EvalPlus compares them. The time
limit is max(least, factor x reference time) when the row says how long its reference took.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from areal_judge.judge.formats.fields import Row, has, number, parsed, refuse, sequence, text
from areal_judge.judge.formats.humaneval import helpers
from areal_judge.judge.formats.python_source import functions, needs_numpy, parse
from areal_judge.judge.values import AssertSuite, CallCase, CallSuite, Checker, Suite
from areal_judge.sandbox.values import DEFAULT_LIMITS, Limits

LEAST_S = DEFAULT_LIMITS.wall_s
FACTOR = 4.0
_FLOAT_TOLERANCE = 1e-6  # where the row asks for none and values are floats
_RELATIVE = 1e-7  # numpy.allclose as EvalPlus calls it
_SAME_MEMBERS = frozenset({
    "similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum", "intersection_array",
    "find_dissimilar", "Diff",
})  # fmt: skip
_FOUND_OR_NOT = frozenset({"check_str", "text_match_three", "text_starta_endb"})  # a match object counts as true
_TEST = """\
import copy
from math import inf, nan

INPUTS = {inputs}
EXPECTED = {expected}
REFERENCE = {reference}
TOLERANCE = {tolerance}


def all_floats(value):
    if type(value) in (list, tuple):
        return bool(value) and all(type(item) is float for item in value)
    return type(value) is float


def close(result, expected, tolerance):
    if type(expected) in (list, tuple):
        return len(result) == len(expected) and all(close(a, b, tolerance) for a, b in zip(result, expected))
    if type(expected) in (int, float):
        return abs(result - expected) <= tolerance + {relative} * abs(expected)
    return result == expected


def agrees(arguments, result, expected):
    if {special!r} == "root":
        return abs(sum(c * result**i for i, c in enumerate(arguments[0]))) <= (TOLERANCE or 1e-4)
    if {special!r} == "members":
        return set(result) == set(expected)
    if {special!r} == "found" and type(result) is not bool:
        return expected == (result is not None)
    if result == expected:
        return True
    tolerance = TOLERANCE or ({float_tolerance} if all_floats(expected) else 0)
    return bool(tolerance) and type(result) is type(expected) and close(result, expected, tolerance)


def check(candidate):
    expected = EXPECTED
    if expected is None:
        names = {{}}
        exec(compile(REFERENCE, "reference", "exec"), names)
        expected = [names[{entry_point!r}](*copy.deepcopy(arguments)) for arguments in INPUTS]
    for index, (arguments, value) in enumerate(zip(INPUTS, expected)):
        result = candidate(*copy.deepcopy(arguments))
        assert agrees(arguments, result, value), f"case {{index}}"
"""


def claims(row: Row) -> bool:
    return "base_input" in row or "plus_input" in row


def suite(row: Row) -> Suite:
    entry_point = text(row, "entry_point")
    inputs = [
        sequence(arguments, f"{name}[{index}]")
        for name in ("base_input", "plus_input")
        for index, arguments in enumerate(_list(row, name))
    ]
    if not inputs:
        refuse("base_input", "no inputs: every program would pass", "add inputs, or drop the row")
    outputs = _outputs(row, len(inputs))
    tolerance = number(row.get("atol") or 0, "atol")
    special = _special(row, entry_point)
    within = _limits(row)
    prelude = helpers(text(row, "prompt", ""), entry_point)
    if outputs is not None and not special:
        return _calls(entry_point, inputs, outputs, tolerance, within, prelude)
    reference = "" if outputs is not None else _reference(row, entry_point)
    test = _TEST.format(
        inputs=_literal(inputs),
        expected=_literal(outputs),
        reference=_literal(reference),
        tolerance=tolerance,
        relative=_RELATIVE,
        special=special,
        float_tolerance=_FLOAT_TOLERANCE,
        entry_point=entry_point,
    )
    numpy = bool(reference) and needs_numpy(parse(reference, "canonical_solution"))
    whole = replace(within, wall_s=within.wall_s * 2, cpu_s=within.cpu_s * 2)  # the reference takes its time, too
    return AssertSuite(test, entry_point, whole, prelude, needs_numpy=numpy)


def _calls(
    entry_point: str, inputs: list[Any], outputs: list[Any], tolerance: float, within: Limits, prelude: str
) -> CallSuite:
    if tolerance == 0 and any(_has_floats(value) for value in outputs):
        tolerance = _FLOAT_TOLERANCE
    cases = [CallCase(tuple(given), due) for given, due in zip(inputs, outputs, strict=True)]
    checker = Checker(absolute=tolerance, relative=_RELATIVE if tolerance else 0.0)
    return CallSuite(entry_point, tuple(cases), checker, within, prelude)


def _list(row: Row, name: str) -> list[Any]:
    value = row.get(name)
    return [] if value in (None, "") else sequence(value, name)


def _outputs(row: Row, count: int) -> list[Any] | None:
    """Expected values in the order of the inputs; None when the row has none."""
    if has(row, "expected_output"):
        found = _list(row, "expected_output")
    elif "base_output" in row or "plus_output" in row:
        found = [*_list(row, "base_output"), *_list(row, "plus_output")]
    else:
        return None
    if len(found) != count:
        refuse("base_output", f"{len(found)} expected values for {count} inputs", "give one an input")
    return found


def _special(row: Row, entry_point: str) -> str:
    """Tasks that EvalPlus judges by an oracle of their own."""
    if not str(row.get("task_id", "")).lower().startswith("mbpp"):
        return "root" if entry_point == "find_zero" else ""
    if entry_point in _SAME_MEMBERS:
        return "members"
    return "found" if entry_point in _FOUND_OR_NOT else ""


def _reference(row: Row, entry_point: str) -> str:
    """The reference as a program: HumanEval+ has a body for the prompt, MBPP+ the whole function."""
    body = text(row, "canonical_solution", "") or refuse(
        "canonical_solution", "missing, and there is no expected_output", "give one of them"
    )
    try:
        alone = entry_point in functions(ast.parse(body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        alone = False
    source = body if alone else text(row, "prompt", "") + body
    if entry_point not in functions(parse(source, "canonical_solution")):
        refuse("canonical_solution", f"does not define {entry_point}", "mend the row, or drop it")
    return source


def _literal(value: Any) -> str:
    """Python source of a value that came from JSON."""
    return repr(value)


def _has_floats(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_floats(item) for item in value)
    return isinstance(value, float)


def _limits(row: Row) -> Limits:
    times: list[float] = []
    for name in ("reference_time", "ref_time", "base_time", "plus_time"):
        value = parsed(row.get(name), name) if isinstance(row.get(name), str) else row.get(name)
        if isinstance(value, Mapping):
            refuse(name, "a number of seconds, or a list of them, is due", "leave the column out if it is unknown")
        if value is not None:
            times += [number(item, name) for item in (value if isinstance(value, list | tuple) else [value])]
    if not times:
        return DEFAULT_LIMITS
    least = number(row.get("min_time_limit") or LEAST_S, "min_time_limit")
    factor = number(row.get("gt_time_limit_factor") or FACTOR, "gt_time_limit_factor")
    wall = max(least, factor * max(times))
    return replace(DEFAULT_LIMITS, wall_s=wall, cpu_s=max(DEFAULT_LIMITS.cpu_s, wall))
