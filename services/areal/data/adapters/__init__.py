"""One reader a kind of source, behind one function.

A reader yields `(place, row, text)`: where the row is (for messages), the row, and its JSON text when the source is
JSON already. It raises `DataError` with that place; it never skips a bad row.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from areal.data.source import HuggingFaceSource, JsonlSource, MixedSource, ReasoningGymSource, RecipeSource, Source
from areal.values.images import image_of

Read = tuple[str, dict[str, Any], bytes | None]

_COLUMNS = ("image", "images")
_IMAGES = (*_COLUMNS, "messages", "prompt")  # columns that may name files of images; a prompt's text is what it says
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
_LONGEST = 4096  # characters of a path


def read_rows(source: Source) -> Iterator[Read]:
    """All rows of a source, in order; images that they name by a file are data URIs. Optional packages are imported
    here and not before."""
    match source:
        case MixedSource():
            return chain.from_iterable(read_rows(part) for part in source.parts)
        case JsonlSource():
            from areal.data.adapters.files import read_file

            return _with_files(read_file(source.path, kind=".jsonl"), source.path.parent)
        case HuggingFaceSource():
            from areal.data.adapters.hugging_face import read as read_hugging_face

            path = Path(source.path)
            return _with_files(read_hugging_face(source), path if path.is_dir() else path.parent)
        case ReasoningGymSource():
            from areal.data.adapters.reasoning_gym import read as read_reasoning_gym

            return read_reasoning_gym(source)
        case RecipeSource():
            from areal.data.adapters.recipe import read as read_recipe

            return _with_files(read_recipe(source), source.path.parent)


def _with_files(rows: Iterator[Read], folder: Path) -> Iterator[Read]:
    for place, row, text in rows:
        found = {
            name: _with_uris(row[name], folder)
            for name in _IMAGES
            if row.get(name) is not None and (name in _COLUMNS or not isinstance(row[name], str))
        }
        changed = any(found[name] is not row[name] for name in found)
        yield (place, {**row, **found}, None) if changed else (place, row, text)


def _with_uris(given: Any, folder: Path) -> Any:
    """A column's images, or the parts of its messages that are some, as data URIs where they are files or Pillow's
    objects; what has none as it is."""
    if isinstance(given, list | tuple):
        made = [_with_uris(each, folder) for each in given]
        return made if any(new is not old for new, old in zip(made, given, strict=True)) else given
    if isinstance(given, dict):
        names = ("image", "path", *(["content"] if isinstance(given.get("content"), list | tuple) else ()))
        inner = {name: _with_uris(given[name], folder) for name in names if name in given}
        return {**given, **inner} if any(new is not given[name] for name, new in inner.items()) else given
    if hasattr(given, "getexif"):
        return image_of(given).uri
    named = isinstance(given, str) and len(given) < _LONGEST and Path(given).suffix.lower() in _SUFFIXES
    return image_of(given, folder).uri if named and (folder / given).is_file() else given
