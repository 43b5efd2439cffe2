"""Dataset rows as verifiers read them: the row of an item, and its expected answer."""

import math
from collections.abc import Mapping
from typing import Any

import orjson

from areal.errors import DataError
from areal.v1 import reward_pb2 as pb
from areal.workflow.rows.forms import answer_text, column_of


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
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        fix = "give one text or number as the answer"
        raise DataError(f"the row's answer is a {type(answer).__name__}", fix=fix)
    if isinstance(answer, float) and not math.isfinite(answer):
        raise DataError(f"the row's answer is {answer}", fix="give a finite number as the answer")
    return answer_text(answer) or ""
