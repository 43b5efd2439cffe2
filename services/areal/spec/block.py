"""Base class of the blocks of a job file: camelCase names, no unknown fields, described fields.

Owns `knob`, by which a field declares its default, its unit, its limits and when it may change; the documentation and
the errors are made from that.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticUndefined


class Mutability(StrEnum):
    """When a field may change. Ordered from free to fixed."""

    LIVE = "live"  # while the run goes on
    RESUME = "on resume"  # when a run is continued; on a cluster, while the job is suspended
    NEVER = "never"  # it says what the run is


class SpecBlock(BaseModel):
    """A mapping of the job file. Fields are snake_case here and camelCase in the file; values are immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,  # as an API server: 160 is a number, "160" is text
        allow_inf_nan=False,
        serialize_by_alias=True,
        defer_build=True,  # validators are made at first use: importing the job file stays cheap
    )

    union_key: ClassVar[str] = ""  # the field that tells the members of a union apart
    one_schema: ClassVar[bool] = False  # its fields are all of one block, and an API server has the schema of that once

    @field_validator("*", mode="after")
    @classmethod
    def _items_have_keys_of_their_own(cls, items: Any, info: ValidationInfo) -> Any:
        """A list whose items are told apart by a key has each once, as in an API server."""
        if isinstance(items, list) and (key := cls._list_key(info.field_name)):
            counts = Counter(getattr(item, key) for item in items)
            name, count = next(iter(counts.most_common(1)), ("", 0))
            if count > 1:
                raise ValueError(f"{to_camel(key)} {name} is there {count} times: keep one")
        return items

    @classmethod
    def _list_key(cls, field_name: str | None) -> str:
        extra = cls.model_fields[field_name].json_schema_extra if field_name in cls.model_fields else None
        return str(extra.get("list_key", "")) if isinstance(extra, dict) else ""


def knob(
    default: Any = PydanticUndefined,
    *,
    what: str,
    unit: str = "",
    change: Mutability = Mutability.NEVER,
    cluster: Mutability | None = None,
    server_default: bool = True,
    list_key: str = "",
    **limits: Any,
) -> Any:
    """Declare a field: what it means, its unit, when it may change, and its limits (ge, gt, le, min_length …).

    Args:
        cluster: when it may change on a cluster, where that differs from a run on one machine.
        server_default: False where it matters whether a field was given, so that no API server may fill it in.
        list_key: the field by which items of a list are told apart; its items are merged by it.
    """
    extra: dict[str, Any] = {
        "unit": unit,
        "change": change.value,
        "cluster": (change if cluster is None else cluster).value,
        "server_default": server_default,
        "list_key": list_key,
    }
    if isinstance(default, type) or callable(default):
        return Field(default_factory=default, description=what, json_schema_extra=extra, **limits)
    return Field(default, description=what, json_schema_extra=extra, **limits)


resting = partial(knob, change=Mutability.RESUME)  # changes between a stop and a resume; on a cluster while suspended
fixed = partial(resting, cluster=Mutability.NEVER)  # as that on one machine, for the job's whole life on a cluster


def fields_of(block: type[BaseModel]) -> dict[str, Any]:
    """A block's fields by the name they have in the file."""
    return {field.alias or name: field for name, field in block.model_fields.items()}


def blocks_in(annotation: Any) -> list[type[SpecBlock]]:
    """The blocks that a field may hold: none for a plain value, several for a union."""
    return [member for member in members_of(annotation) if isinstance(member, type) and issubclass(member, SpecBlock)]


def item_block(annotation: Any) -> type[SpecBlock] | None:
    """The block that each item of a list is; None for other fields."""
    for member in members_of(annotation):
        if get_origin(member) in (list, tuple) and (blocks := blocks_in(get_args(member)[0])):
            return blocks[0]
    return None


def block_for(annotation: Any, given: Any) -> type[SpecBlock] | None:
    """The block that `given` means: the only one, or the member of a union whose key says so (else the first)."""
    blocks = blocks_in(annotation)
    if not blocks:
        return None
    wanted = given.get(blocks[0].union_key) if isinstance(given, dict) else None
    return next((block for block in blocks if wanted in tags_of(block)), blocks[0])


def without_nulls(block: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """A block's values without nulls that say no more than a missing field does, as an API server stores them."""
    return _pruned([block], block, values)


def _pruned(members: Sequence[type[BaseModel]], block: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """`block` is the one of a union's members that the values mean."""
    fields = {**{name: field for each in members for name, field in fields_of(each).items()}, **fields_of(block)}
    kept = {}
    for name, value in values.items():
        field = fields.get(name)
        if field is None:
            kept[name] = value
        elif value is not None:
            kept[name] = _inner_pruned(field.annotation, value)
        elif may_be_null(field.annotation) and field.default is not None:
            kept[name] = None
    return kept


def _inner_pruned(annotation: Any, value: Any) -> Any:
    if isinstance(value, dict):
        if block := block_for(annotation, value):
            return _pruned(blocks_in(annotation), block, value)
        values = [get_args(member)[1] for member in members_of(annotation) if get_origin(member) is dict]
        if values and not may_be_null(values[0]):
            return {name: inner for name, inner in value.items() if inner is not None}
    if isinstance(value, list) and (item := item_block(annotation)):
        return [without_nulls(item, each) if isinstance(each, dict) else each for each in value]
    return value


def tags_of(block: type[BaseModel]) -> tuple[str, ...]:
    """The values of its key by which a union's member is known; none for a block outside unions."""
    key = getattr(block, "union_key", "")
    return get_args(fields_of(block)[key].annotation) if key else ()


def may_be_null(annotation: Any) -> bool:
    """Whether null is a value of a field, and not its absence."""
    members = members_of(annotation)
    return Any in members or NoneType in members


def members_of(annotation: Any) -> list[Any]:
    """The types that an annotation allows, without Annotated and Union around them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return members_of(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [inner for member in get_args(annotation) for inner in members_of(member)]
    return [annotation]
