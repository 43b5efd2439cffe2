"""SandboxFusion's rows: `test_cases` {inputs, outputs, fn_name?}, `assert_case` [asserts], and its online-judge form
`test` [{input: {stdin}, output: {stdout}}].

Output is compared as it does: words, without case, numbers within 1e-5 relative.
"""

from collections.abc import Mapping
from typing import Any

from areal_judge.judge.formats.apps import suite_of_tests
from areal_judge.judge.formats.cases import Pairs, suite_of_pairs
from areal_judge.judge.formats.fields import Row, has, mapping, parsed, refuse, sequence
from areal_judge.judge.values import Checker, Suite

CHECKER = Checker("tokens_float", relative=1e-5, fold_case=True)


def claims(row: Row) -> bool:
    if has(row, "assert_case") or _are_streams(row.get("test")):
        return True
    tests = row.get("test_cases")
    return (
        isinstance(tests, Mapping) or (isinstance(tests, str) and tests.lstrip().startswith("{")) or _are_streams(tests)
    )


def suite(row: Row) -> Suite:
    if has(row, "assert_case"):
        return suite_of_tests(row, {"assert_case": row["assert_case"]}, "row", CHECKER)
    at = "test_cases" if has(row, "test_cases") else "test"
    tests = parsed(row.get(at) or [], at)
    if isinstance(tests, Mapping):
        return suite_of_tests(row, mapping(tests, at), at, CHECKER)
    pairs = [_pair(case, f"{at}[{index}]") for index, case in enumerate(sequence(tests, at))]
    return suite_of_pairs(Pairs([given for given, _ in pairs], [due for _, due in pairs], at), checker=CHECKER)


def _are_streams(value: Any) -> bool:
    return isinstance(value, list) and any(
        isinstance(case, Mapping) and isinstance(case.get("input"), Mapping) and "stdin" in case["input"]
        for case in value
    )


def _pair(case: Any, at: str) -> tuple[Any, Any]:
    if not isinstance(case, Mapping) or not isinstance(case.get("input"), Mapping):
        refuse(at, "an object {input: {stdin}, output: {stdout}} is due", "give both, or drop the case")
    output = case.get("output")
    if not isinstance(output, Mapping) or output.get("stdout") is None:
        refuse(f"{at}.output.stdout", "no expected output", "give it as a string, or drop the case")
    return case["input"].get("stdin") or "", output["stdout"]
