"""Validation errors in words, with the line.

Owns the translation of pydantic's errors into sentences that name the field as the file writes it, the nearest allowed
name, and what is allowed instead.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from areal.errors import ConfigError
from areal.spec.block import block_for, fields_of, item_block, tags_of, without_nulls
from areal.spec.text import MEANING
from areal.yaml_file import document
from areal.yaml_file.table import read_table

_EXPECTED = {
    "int": "a whole number", "float": "a number", "string": "text", "bool": "true or false", "list": "a list",
    "tuple": "a list", "dict": "a mapping", "model": "a mapping", "model_attributes": "a mapping",
}  # fmt: skip

_LONGEST = 200  # characters of a value in a message
_FEW = 8  # names that a message lists


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `field` is dotted, from the top of the file; `where` is `file:line` or the override."""

    field: str
    message: str
    where: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.field, self.message) if part)


class SpecError(ConfigError):
    """A job file that can't be read as a job. `problems` has all of them."""

    def __init__(self, file: str, problems: Sequence[Problem], *, fix: str) -> None:
        self.problems = list(problems)
        if len(self.problems) == 1:
            text = str(self.problems[0])
        else:
            lines = "".join(f"\n  {problem}" for problem in self.problems)
            text = f"{file} has {len(self.problems)} errors:{lines}"
        super().__init__(text, fix=fix)


Model = TypeVar("Model", bound=BaseModel)


def refuse_invalid(
    model: type[Model],
    values: Mapping[str, Any],
    places: Mapping[str, str],
    source: str,
    *,
    fix: str,
    problems: Sequence[Problem] = (),
) -> Model:
    """`values` as a model; raises SpecError with all that is wrong, `problems` that were found before included.

    Args:
        places: where each dotted field was given; "" is the whole.
        source: what is read, for the error's head.
    """
    found = list(problems)
    made = None
    values = without_nulls(model, values)
    try:
        made = model.model_validate(values, by_alias=True, by_name=False)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            field, holder = place(detail, model, values)
            found.append(Problem(field, describe(detail, holder), _where(field, places)))
    if made is None or found:
        raise SpecError(source, found, fix=fix)
    return made


def _where(field: str, places: Mapping[str, str]) -> str:
    """Where a field comes from; of a missing field, the block that should hold it."""
    while field not in places:
        field = field.rpartition(".")[0]
    return places[field]


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The allowed name that was probably meant; None when none is close."""
    return next(iter(_close(name, allowed)), None)


def unknown_field(name: str, block: type[BaseModel]) -> str:
    """The sentence for a field that a block doesn't have: the names that are close, or all where there are few."""
    allowed = list(fields_of(block))
    if said := read_table("areal.spec", "elsewhere.yaml")["fields"].get(name.lower().replace("_", "")):
        return f"unknown field; {said}"
    if meant := _close(name, allowed):
        return f"unknown field; did you mean {' or '.join(meant)}?"
    if len(allowed) <= _FEW:
        return f"unknown field; allowed here: {', '.join(allowed)}."
    return f"unknown field, and none here is called alike: docs/rljob.md lists all {len(allowed)}."


def _close(name: str, allowed: Iterable[str]) -> list[str]:
    """The allowed names that were probably meant, the closest first; others only when they are nearly as close."""
    plain = name.lower().replace("_", "").replace("-", "")
    choices = {choice.lower().replace("_", ""): choice for choice in allowed}
    found = difflib.get_close_matches(plain, choices, n=3, cutoff=0.6)
    likeness = [difflib.SequenceMatcher(None, plain, each).ratio() for each in found]
    return [choices[each] for each, alike in zip(found, likeness, strict=True) if alike > likeness[0] - 0.05]


def place(error: ErrorDetails, root: type[BaseModel], values: Any) -> tuple[str, type[BaseModel] | None]:
    """The dotted field of a pydantic error as the file writes it, and the block that holds it.

    Pydantic puts the tags of unions into locations; they are left out here.
    """
    path: list[str] = []
    block: type[BaseModel] | None = root
    holder: type[BaseModel] | None = root
    item: type[BaseModel] | None = None  # what the list that the path is in has as items
    for element in error["loc"]:
        if block is None or isinstance(element, int):
            path.append(str(element))
            values = _child(values, element)
            if isinstance(element, int):
                block, item = item, None
            continue
        fields = fields_of(block)
        if element not in fields and element in tags_of(block):
            continue
        holder = block
        path.append(str(element))
        values = _child(values, element)
        annotation = fields[element].annotation if element in fields else None
        block, item = block_for(annotation, values), item_block(annotation)
    if path and path[-1] == "[key]":  # pydantic's word for a key that is wrong itself: the mapping has it
        del path[-2:]
    if error["type"] in ("union_tag_invalid", "union_tag_not_found") and block is not None:
        path.append(getattr(block, "union_key", ""))
        holder = block
    return ".".join(path), holder


def describe(error: ErrorDetails, holder: type[BaseModel] | None) -> str:
    """What is wrong with one field, without its name."""
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden" and holder is not None:
        return unknown_field(str(error["loc"][-1]), holder)
    if kind in ("missing", "union_tag_not_found"):
        name = str(error["loc"][-1]) if kind == "missing" else getattr(holder, "union_key", "")
        field = fields_of(holder).get(name) if holder else None
        return f"missing: {field.description}" if field is not None else "missing"
    if kind in ("literal_error", "union_tag_invalid"):
        expected = str(context.get("expected") or context.get("expected_tags"))
        if kind == "union_tag_invalid":
            given = context["tag"]
        choices = [choice.strip(" '") for choice in expected.replace(" or ", ", ").split(",")]
        meant = nearest(str(given), choices)
        return f"{_show(given)} is unknown; {f'did you mean {meant}? ' if meant else ''}Allowed: {', '.join(choices)}."
    for limit, words in _LIMITS.items():
        if limit in context:
            return f"{_show(given)} is refused: it must be {words} {context[limit]}"
    if kind == "string_pattern_mismatch" and context["pattern"] in MEANING:
        return f"{_show(given)} is not {MEANING[context['pattern']]}"
    base = kind.removesuffix("_parsing").removesuffix("_type")
    if base == "int_from_float":
        base = "int"
    if base in _EXPECTED:
        return f"expected {_EXPECTED[base]}, got {_show(given)}{_quotes(base, given)}"
    return shortened(error["msg"].removeprefix("Value error, "))


def _quotes(wanted: str, given: Any) -> str:
    """What to do about text for another value, and the reverse."""
    if wanted == "string" and isinstance(given, bool):
        return "; unquoted yes, no, on, off, y and n mean true and false: put it in quotes where text is meant"
    if wanted == "string" and isinstance(given, int | float):
        return "; put it in quotes where text is meant"
    if wanted in ("int", "float", "bool") and isinstance(given, str):
        value = document.plain(given) if given.isascii() and not given.startswith("0") else given
        fitting = bool if wanted == "bool" else (int, float)
        if isinstance(value, fitting) and isinstance(value, bool) == (wanted == "bool"):
            return "; write it without quotes"
    return ""


_LIMITS = {
    "gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most",
    "min_length": "of a length of at least", "max_length": "of a length of at most",
}  # fmt: skip


def _show(given: Any) -> str:
    if isinstance(given, dict):
        return "a mapping"
    if isinstance(given, list):
        return "a list"
    if isinstance(given, bool):
        return str(given).lower()
    return "nothing" if given is None else shortened(repr(given))


def shortened(text: str) -> str:
    """A text for a message; of a long one the beginning."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


def _child(values: Any, element: int | str) -> Any:
    try:
        return values[element]
    except (KeyError, IndexError, TypeError):
        return None
