"""CodeContests (Li et al. 2022): public, private and generated tests, each {input[], output[]} or a list of pairs."""

from typing import Any

from areal_judge.judge.formats.cases import Pairs, suite_of_pairs
from areal_judge.judge.formats.fields import Row, has, limits, memory, parsed, refuse, seconds, sequence
from areal_judge.judge.values import Suite

_COLUMNS = ("public_tests", "private_tests", "generated_tests")


def claims(row: Row) -> bool:
    return any(name in row for name in _COLUMNS)


def suite(row: Row) -> Suite:
    for name in ("input_file", "output_file"):
        if has(row, name):
            refuse(
                name, f"programs of this problem use the file {row[name]!r}", "drop the row: only streams are judged"
            )
    inputs: list[Any] = []
    outputs: list[Any] = []
    for name in _COLUMNS:
        given, due = _tests(row.get(name), name)
        inputs += given
        outputs += due
    within = limits(
        seconds(row.get("time_limit"), "time_limit"), memory(row.get("memory_limit_bytes"), "memory_limit_bytes")
    )
    return suite_of_pairs(Pairs(inputs, outputs, "tests"), limits=within)


def _tests(value: Any, at: str) -> tuple[list[Any], list[Any]]:
    found = parsed(value, at) if value not in (None, "") else []
    if isinstance(found, dict):
        given = sequence(found.get("input") or [], f"{at}.input")
        due = sequence(found.get("output") or [], f"{at}.output")
        if len(given) != len(due):
            refuse(at, f"{len(given)} inputs and {len(due)} outputs", "give one expected output an input")
        return given, due
    pairs = sequence(found, at)
    for index, pair in enumerate(pairs):
        if not isinstance(pair, dict) or "input" not in pair or "output" not in pair:
            refuse(f"{at}[{index}]", "an object {input, output} is due", "give both, or drop the case")
    return [pair["input"] for pair in pairs], [pair["output"] for pair in pairs]
