"""APPS, and PRIME's and verl's rows, which have its form: `input_output` {inputs[], outputs[], fn_name?}.

Function tests hold lists of arguments (APPS itself) or text with one JSON value a line (what came after it). Both
accept what their own graders accept: dictionaries whose integer keys became strings, expected values in one list more,
methods of a class Solution (the judge looks there for a function that is not at the top).
"""

from typing import Any

from areal_judge.judge.formats.cases import TOKENS, Pairs, Quirks, suite_of_pairs
from areal_judge.judge.formats.fields import Row, flag, has, limits, mapping, memory, refuse, seconds, sequence, text
from areal_judge.judge.formats.mbpp import assert_suite
from areal_judge.judge.values import Checker, Suite

_OF_TACO = ("skill_types", "Expected Time Complexity", "Expected Auxiliary Space", "raw_tags")


def claims(row: Row) -> bool:
    return _column(row) is not None and not any(name in row for name in _OF_TACO)


def claims_taco(row: Row) -> bool:
    """TACO: the same tests, with limits written out ("2.0 seconds", "256.0 megabytes")."""
    return "input_output" in row and any(name in row for name in _OF_TACO)


def suite(row: Row) -> Suite:
    column = _column(row)
    if column is None:
        refuse("input_output", "missing", "give the column 'input_output', or name another format")
    at, value = column
    return suite_of_tests(row, mapping(value, at), at)


def suite_of_tests(row: Row, tests: dict[str, Any], at: str, checker: Checker = TOKENS) -> Suite:
    """A suite of an {inputs, outputs, fn_name?, assert_case?} object."""
    if tests.get("assert_case"):
        asserts = "\n".join(texts_of(tests["assert_case"], f"{at}.assert_case"))
        named = {**row, "entry_point": row.get("entry_point") or tests.get("fn_name")}
        return assert_suite(named, text(row, "test_setup_code", ""), asserts, f"{at}.assert_case")
    for name in ("inputs", "outputs"):
        if name not in tests:
            refuse(f"{at}.{name}", "missing", "give {inputs: […], outputs: […]}")
    name = tests.get("fn_name") or ""
    if not isinstance(name, str):
        refuse(f"{at}.fn_name", "a text is due", "write the function's name")
    pairs = Pairs(sequence(tests["inputs"], f"{at}.inputs"), sequence(tests["outputs"], f"{at}.outputs"), at, name)
    within = limits(seconds(row.get("time_limit"), "time_limit"), memory(row.get("memory_limit"), "memory_limit"))
    quirks = Quirks(integer_keys=True, wrapped_outputs=flag(row, "unwrap_single", True))
    return suite_of_pairs(pairs, checker=checker, limits=within, quirks=quirks, numpy=True)


def texts_of(value: Any, at: str) -> list[str]:
    found = sequence(value, at) if not isinstance(value, str) or value.lstrip().startswith("[") else [value]
    if not all(isinstance(item, str) for item in found):
        refuse(at, "a list of texts is due", "write each assert as a string")
    return found


def _column(row: Row) -> tuple[str, Any] | None:
    """Where the tests are: `input_output`, or verl's reward_model.ground_truth."""
    if "input_output" in row:
        return "input_output", row["input_output"] or {}
    model = row.get("reward_model")
    if isinstance(model, dict) and has(model, "ground_truth"):
        truth = model["ground_truth"]
        if isinstance(truth, dict) or (isinstance(truth, str) and truth.lstrip().startswith("{")):
            return "reward_model.ground_truth", truth
    return None
