"""Format registry: detects the data-set format of a row and makes its suite.

`auto` asks every format whether the row has its columns. Exactly one must say yes: a row that two formats would read
differently is refused by name rather than guessed at.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from areal.errors import ConfigError, DataError

from areal_judge.judge.formats import (
    apps,
    codecontests,
    evalplus,
    humaneval,
    livecodebench,
    mbpp,
    native,
    sandboxfusion,
    verifiable,
)
from areal_judge.judge.formats.fields import Row
from areal_judge.judge.validation import validate
from areal_judge.judge.values import CallSuite, StdioSuite, Suite


@dataclass(frozen=True)
class _Format:
    claims: Callable[[Row], bool]
    suite: Callable[[Row], Suite]


_TABLE: Mapping[str, _Format] = {
    "native": _Format(native.claims, native.suite),
    "humaneval": _Format(humaneval.claims, humaneval.suite),
    "mbpp": _Format(mbpp.claims, mbpp.suite),
    "evalplus": _Format(evalplus.claims, evalplus.suite),
    "apps": _Format(apps.claims, apps.suite),
    "taco": _Format(apps.claims_taco, apps.suite),
    "codecontests": _Format(codecontests.claims, codecontests.suite),
    "livecodebench": _Format(livecodebench.claims, livecodebench.suite),
    "sandboxfusion": _Format(sandboxfusion.claims, sandboxfusion.suite),
    "verifiable": _Format(verifiable.claims, verifiable.suite),
}
FORMATS: tuple[str, ...] = tuple(_TABLE)


def suite_of(row: Mapping[str, Any], format: str = "auto") -> Suite:
    """The suite of a dataset row, validated.

    Raises:
        DataError: the row has no known form, or two, or its tests could fail no program; names the column.
        ConfigError: there is no such format.
    """
    name = detect(row) if format == "auto" else format
    if name not in _TABLE:
        raise ConfigError(f"there is no format {name!r}", fix=f"use auto or one of {', '.join(FORMATS)}")
    suite = _TABLE[name].suite(row)
    validate(suite, "row")
    if name != "native":
        _can_fail(suite)
    return suite


def detect(row: Mapping[str, Any]) -> str:
    """The one format that the row has. Raises DataError when there is none, or more than one."""
    found = [name for name, form in _TABLE.items() if form.claims(row)]
    if len(found) == 1:
        return found[0]
    columns = ", ".join(sorted(map(str, row))[:20])
    if not found:
        raise DataError(
            f"the row's tests have no known format (its columns: {columns})",
            fix=f"name the columns as one of {', '.join(FORMATS)} does, or put a suite into a column 'suite'",
        )
    raise DataError(
        f"the row's tests could be {' or '.join(found)} (its columns: {columns})",
        fix=f"name the format: reward.code.format: {found[0]}, or --format {found[0]}",
    )


def _can_fail(suite: Suite) -> None:
    """A data set whose expected values got lost has blanks in their place, and a program that does nothing passes."""
    match suite:
        case StdioSuite() if not any(case.expected.strip() for case in suite.cases):
            raise DataError("row: every expected output is blank", fix="restore the expected outputs, or drop the row")
        case CallSuite() if all(case.expected is None for case in suite.cases):
            raise DataError("row: every expected value is null", fix="restore the expected values, or drop the row")
