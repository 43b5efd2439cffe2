"""One reader a kind of source, behind one function.

A reader yields `(place, row, text)`: where the row is (for messages), the row, and its JSON text when the source is
JSON already. It raises `DataError` with that place; it never skips a bad row.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from areal.data.source import HuggingFaceSource, JsonlSource, MixedSource, ReasoningGymSource, RecipeSource, Source

Read = tuple[str, dict[str, Any], bytes | None]


def read_rows(source: Source) -> Iterator[Read]:
    """All rows of a source, in order. Optional packages are imported here and not before."""
    match source:
        case MixedSource():
            return chain.from_iterable(read_rows(part) for part in source.parts)
        case JsonlSource():
            from areal.data.adapters.files import read_file

            return read_file(source.path, kind=".jsonl")
        case HuggingFaceSource():
            from areal.data.adapters.hugging_face import read as read_hugging_face

            return read_hugging_face(source)
        case ReasoningGymSource():
            from areal.data.adapters.reasoning_gym import read as read_reasoning_gym

            return read_reasoning_gym(source)
        case RecipeSource():
            from areal.data.adapters.recipe import read as read_recipe

            return read_recipe(source)
