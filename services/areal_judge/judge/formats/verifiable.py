"""Verifiable coding problems (open-r1, PrimeIntellect): a list of {input, output, fn_name?, type}.

The list is the column `test_cases`, or stands in `verification_info`, which may be JSON text.
"""

from collections.abc import Mapping
from typing import Any

from areal_judge.judge.formats.cases import Pairs, Quirks, suite_of_pairs
from areal_judge.judge.formats.fields import Row, flag, has, mapping, refuse, sequence
from areal_judge.judge.values import Suite

_CALL, _STDIO = "function_call", "stdin_stdout"


def claims(row: Row) -> bool:
    if has(row, "verification_info"):
        return True
    tests = row.get("test_cases")
    if isinstance(tests, str):
        return tests.lstrip().startswith("[")
    return isinstance(tests, list) and bool(tests) and all(_is_plain(case) for case in tests)


def _is_plain(case: Any) -> bool:
    return isinstance(case, Mapping) and "input" in case and not isinstance(case["input"], Mapping)


def suite(row: Row) -> Suite:
    at = "verification_info.test_cases" if has(row, "verification_info") else "test_cases"
    holder = mapping(row["verification_info"], "verification_info") if has(row, "verification_info") else row
    cases = sequence(holder.get("test_cases") or [], at)
    names = {_function(case, f"{at}[{index}]") for index, case in enumerate(cases)}
    if len(names) > 1:
        refuse(at, f"cases for different functions: {sorted(names)}", "use one function, or none, in a row")
    return suite_of_pairs(
        Pairs([case.get("input", "") for case in cases], [case["output"] for case in cases], at, "".join(names)),
        quirks=Quirks(integer_keys=True, wrapped_outputs=flag(row, "unwrap_single", True)),
        numpy=True,
    )


def _function(case: Any, at: str) -> str:
    """The function that a case calls; empty for standard input."""
    if not isinstance(case, Mapping):
        refuse(at, "an object {input, output, fn_name, type} is due", "see docs/reward.md for the formats")
    if "output" not in case:
        refuse(f"{at}.output", "no expected output", "give it, or drop the case")
    name, kind = case.get("fn_name") or "", case.get("type") or (_CALL if case.get("fn_name") else _STDIO)
    if kind not in (_CALL, _STDIO):
        refuse(f"{at}.type", f"{kind!r} is unknown", f"use {_STDIO} or {_CALL}")
    if kind == _CALL and (not isinstance(name, str) or not name):
        refuse(f"{at}.fn_name", "missing: the case calls a function", "give its name")
    return str(name) if kind == _CALL else ""
