"""EvalPlus (Liu et al. 2023), HumanEval+ and MBPP+ as it publishes them: `base_input`, `plus_input`, `atol`.

Expected values come with the row (`base_output`, `plus_output`, or `expected_output` for both), or from its reference
solution, which then runs beside the tests, away from the program. Floats compare as EvalPlus compares them. The time
limit is max(least, factor x reference time) when the row says how long its reference took.
"""

import ast
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from typing import Any

from areal_judge.judge.formats.fields import Row, has, number, parsed, refuse, sequence, text
from areal_judge.judge.formats.humaneval import helpers
from areal_judge.judge.formats.python_source import functions, needs_numpy, parse
from areal_judge.judge.values import AssertSuite, CallCase, CallSuite, Checker, Suite
from areal_judge.sandbox.values import DEFAULT_LIMITS, Limits

LEAST_S = DEFAULT_LIMITS.wall_s  # EvalPlus has 1 s, on a machine of its own; `min_time_limit: 1` in a row says so
FACTOR, TASK_S = 4.0, 60.0  # as EvalPlus
_FLOAT_TOLERANCE = 1e-6  # where the row asks for none and values are floats
_RELATIVE = 1e-7  # numpy.allclose as EvalPlus calls it
_SAME_MEMBERS = frozenset({
    "similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum", "intersection_array",
    "find_dissimilar", "Diff",
})  # fmt: skip
_OTHER_READINGS = {
    "are_equivalent": "True",
    "sum_div": "result == 0",
    "digit_distance_nums": "result == sum(abs(int(x) - int(y)) for x, y in digits(*arguments))",
    "surface_Area": "abs(result - round(pyramid(*arguments))) <= tolerance",
}
"""Results that MBPP+ takes beside the expected one, because the task can be read in another way."""
_FOUND_OR_NOT = frozenset({"check_str", "text_match_three", "text_starta_endb"})  # a match object counts as true
_TEST = resources.files("areal_judge.judge.formats").joinpath("evalplus_test.py.txt").read_text(encoding="utf-8")


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
    special, other = _oracle(row, entry_point)
    within = _limits(row)
    prelude = helpers(text(row, "prompt", ""), entry_point)
    if outputs is not None and not special and other == "False" and (tolerance or _one_tolerance(outputs)):
        return _calls(entry_point, inputs, outputs, tolerance, within, prelude)
    reference = "" if outputs is not None else _reference(row, entry_point)
    test = _TEST.format(
        inputs=repr(inputs),
        expected=repr(outputs),
        reference=repr(reference),
        tolerance=tolerance,
        relative=_RELATIVE,
        special=special,
        other=other,
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


def _oracle(row: Row, entry_point: str) -> tuple[str, str]:
    """The kind of a task that EvalPlus judges by an oracle of its own, and the other reading that it accepts."""
    if not str(row.get("task_id", "")).lower().startswith("mbpp"):
        return "root" if entry_point == "find_zero" else "", "False"
    special = "members" if entry_point in _SAME_MEMBERS else "found" if entry_point in _FOUND_OR_NOT else ""
    return special, _OTHER_READINGS.get(entry_point, "False")


def _one_tolerance(outputs: list[Any]) -> bool:
    """Whether one tolerance holds for all cases: EvalPlus begins with none, and keeps the one of the first floats."""
    first = next((index for index, value in enumerate(outputs) if _all_floats(value)), len(outputs))
    return not any(_has_floats(value) for value in outputs[:first])


def _all_floats(value: Any) -> bool:
    return isinstance(value, float) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(item, float) for item in value)
    )


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
    wall = min(TASK_S, max(least, factor * max(times)))
    return replace(DEFAULT_LIMITS, wall_s=wall, cpu_s=max(DEFAULT_LIMITS.cpu_s, wall))
