"""The verifier protocol, and the results that verifiers give.

A result is a score, a graded verdict, or a fault that says whose fault it was. A fault never carries a score: no
infrastructure problem becomes reward 0.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from areal.errors import DataError
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as pb
from areal.workflow.rows.forms import answer_text, column_of


class Verifier:
    """Scores items of one kind. Safe to call concurrently."""

    name: str
    slots: int  # items that it can score at once

    async def start(self) -> None:
        """Gets ready; raises DataError when the job's reward cannot work at all."""

    async def stop(self) -> None:
        """Ends everything it started."""

    async def score(self, items: Sequence[pb.ScoreItem]) -> list[pb.ScoreResult]:
        """One result an item, in order. Never raises for an item's sake."""
        raise NotImplementedError


def fault_result(
    kind: common.FaultKind.ValueType, message: str, *, fix: str = "", traceback: str = "", wall_s: float = 0.0
) -> pb.ScoreResult:
    """A result that is no score."""
    fault = common.Fault(kind=kind, message=message, fix=fix, traceback=traceback)
    return pb.ScoreResult(fault=fault, wall_s=wall_s)


def data_fault(error: DataError) -> pb.ScoreResult:
    return fault_result(common.FAULT_KIND_DATA, error.message, fix=error.fix)


# ---- Dataset rows as verifiers read them: the row of an item, and its expected answer


def row_of_item(item: pb.ScoreItem) -> dict[str, Any]:
    """The item's dataset row. Raises DataError when it is no JSON object."""
    try:
        row = orjson.loads(item.row_json)
    except orjson.JSONDecodeError as error:
        raise DataError(f"row_json is not JSON: {error}", fix="send the dataset row as a JSON object") from None
    if not isinstance(row, dict):
        raise DataError(f"row_json is a {type(row).__name__}", fix="send the dataset row as a JSON object")
    return row


def answer_of_row(row: Mapping[str, Any], field: str) -> Any:
    """The expected answer of a row: a column, or a dotted path into one. Raises DataError when the row has none."""
    if (answer := column_of(row, field)) is None:
        raise DataError(
            f'the row has no "{field}" to compare with (it has {", ".join(map(str, row)) or "no columns"})',
            fix="add this column to the dataset, or name another one in reward.answerField",
        )
    return answer


def gold_of_row(row: Mapping[str, Any], field: str) -> str:
    """The expected answer as text. Raises DataError when the row has none that is a text or a number."""
    answer = answer_of_row(row, field)
    answer = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        fix = "give one text or number as the answer"
        raise DataError(f"the row's answer is a {type(answer).__name__}", fix=fix)
    if isinstance(answer, float) and not math.isfinite(answer):
        raise DataError(f"the row's answer is {answer}", fix="give a finite number as the answer")
    return answer_text(answer) or ""
