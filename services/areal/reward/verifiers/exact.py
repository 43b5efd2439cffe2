"""`exact`: the completion equals the row's answer, white space apart."""

import unicodedata
from collections.abc import Sequence
from typing import Any

from areal.errors import DataError
from areal.reward.verifier import Verifier, answer_of_row, data_fault, row_of_item
from areal.v1 import reward_pb2 as pb
from areal.workflow.rows.forms import answer_text

_AT_ONCE = 1024  # in-process and quick: a figure for the capabilities, not a limit


def normalised(text: str) -> str:
    """NFC, runs of white space as one space, none at the ends. Case counts."""
    return " ".join((text if text.isascii() else unicodedata.normalize("NFC", text)).split())


def matches(completion: str, answer: Any) -> bool:
    """Whether a completion is the answer, or one of them when the row lists several."""
    found = normalised(completion)
    if isinstance(answer, list):
        return any(found in _texts(one) for one in answer)
    return found in _texts(answer)


def _texts(answer: Any) -> set[str]:
    """What an answer may be written as: 18.0 as 18, too, which a null or a reader of tables may have made a float."""
    if isinstance(answer, str | int | float):
        return {normalised(str(answer)), normalised(answer_text(answer) or "")}
    raise DataError(
        f"the row's answer is a {type(answer).__name__}", fix="give a text, a number, or a list of them to compare with"
    )


class ExactVerifier(Verifier):
    """Compares in this process; 1.0 or 0.0."""

    name = "exact"
    slots = _AT_ONCE

    def __init__(self, answer_field: str) -> None:
        self._field = answer_field

    async def score(self, items: Sequence[pb.ScoreItem]) -> list[pb.ScoreResult]:
        return [self._score(item) for item in items]

    def _score(self, item: pb.ScoreItem) -> pb.ScoreResult:
        try:
            answer = answer_of_row(row_of_item(item), self._field)
            return pb.ScoreResult(score=1.0 if matches(item.completion, answer) else 0.0)
        except DataError as error:
            return data_fault(error)
