"""One row of a dataset: whether it has what the job needs, and how it is written as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

import orjson

from areal.errors import DataError
from areal.values.images import image_of
from areal.workflow.rows.forms import column_of

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_INT64 = range(-(1 << 63), 1 << 64)  # the integers that JSON readers agree on here


@dataclass(frozen=True)
class ColumnKey:
    """A column that a row must have, if only with null in it: an argument of a function."""

    name: str
    wanted_by: str


_LIKELY = (
    "reward_model.ground_truth", "ground_truth", "solution", "label", "target", "gold", "correct", "final_answer",
)  # fmt: skip
"""Columns in which public data sets keep the answer."""
Column = str | tuple[str, ...] | ColumnKey
"""A column with a value; a tuple: any one of these."""


def check_row(row: Mapping[str, Any], required: Sequence[Column], place: str) -> None:
    """Raise DataError for the first column that the row lacks."""
    for column in required:
        if isinstance(column, ColumnKey):
            if column.name not in row:
                raise DataError(
                    f'{place}: {column.wanted_by} needs the column "{column.name}" (found {_has(row)})',
                    fix=f'give every row "{column.name}", or give the argument a default',
                )
            continue
        names = (column,) if isinstance(column, str) else column
        if not any(column_of(row, name) is not None for name in names):
            wanted = " or ".join(f'"{name}"' for name in names)
            lacks = "is null" if any(name in row for name in names) else "is missing"
            likely = [name for name in _LIKELY if names == ("answer",) and column_of(row, name) is not None][:1]
            fields = "".join(f"reward.answerField: {name}, if that is it; " for name in likely)
            raise DataError(
                f"{place}: column {wanted} {lacks} (found {_has(row)})",
                fix=f"{fields}give every row {wanted}, or name the right column in the job "
                "(reward.answerField, huggingFace.columns)",
            )


def _has(row: Mapping[str, Any]) -> str:
    return ", ".join(f'"{name}"' for name in row) or "no columns"


def encode(row: Mapping[str, Any], place: str) -> bytes:
    """The row as JSON. Fractions, decimals and very large integers become text, sets lists, keys text, images URIs."""
    try:
        return orjson.dumps(row, option=_OPTIONS)
    except TypeError:
        pass
    try:
        return orjson.dumps(_plain(row), option=_OPTIONS)
    except (TypeError, RecursionError, UnicodeEncodeError) as error:
        raise DataError(f"{place}: a value is no JSON: {error}", fix="drop the column or turn it into text") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(inner) for inner in value), key=repr)
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Fraction | Decimal | complex):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if value in _INT64 else str(value)
    if isinstance(value, str):
        value.encode()  # half of a surrogate pair is no text
        return value
    if isinstance(value, bytes) or hasattr(value, "getexif"):  # an image, Pillow's too
        return image_of(value).uri
    if hasattr(value, "tolist"):  # numpy's and torch's arrays and scalars
        return _plain(value.tolist())
    return value
