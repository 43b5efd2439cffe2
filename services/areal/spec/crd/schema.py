"""From a model to the structural schema that an API server wants.

Pure. Blocks become closed objects, unions of blocks one object with the fields of all members, sizes and amounts become
`int-or-string`. A default is written out in full, because rules are tried on it before inner defaults are filled in;
empty lists and mappings are left out, so that an object shows what was said.
"""

from datetime import datetime
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from areal.spec.block import SpecBlock, blocks_in, fields_of, item_block, members_of, tags_of
from areal.spec.quantity import kubernetes_bytes, show_bytes
from areal.spec.text import MEANING, WireSchema

Schema = dict[str, Any]

_LARGEST = 1 << 53  # limits are JSON numbers: beyond this they are not exact, and integers end at 2⁶³ anyway


def block_schema(blocks: list[type[SpecBlock]], *, defaults: bool = True) -> Schema:
    """The object of a block, or of the members of a union. `defaults`: False for a status, which nobody fills in."""
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for block in blocks:
        for name, field in fields_of(block).items():
            shared = all(name in fields_of(other) for other in blocks)
            made = field_schema(field, defaults=defaults and shared)
            if name == block.union_key:
                made = _key_schema(blocks, field, made)
            properties.setdefault(name, made)
            if field.is_required() and name not in required and _always_required(name, blocks):
                required.append(name)
    schema: Schema = {"description": _sentence(blocks), "type": "object"}
    if required:
        schema["required"] = required
    schema["properties"] = properties
    if rules := [*_union_rules(blocks)]:
        schema["x-kubernetes-validations"] = rules
    return schema


def field_schema(field: FieldInfo, *, defaults: bool) -> Schema:
    """One field with its description and default."""
    extra: dict[str, Any] = field.json_schema_extra  # type: ignore[assignment]
    schema = _typed(field.annotation, list(field.metadata), extra, defaults=defaults)
    unit = f" ({extra['unit']})" if extra["unit"] else ""
    schema["description"] = f"{str(field.description).removesuffix('.')}{unit}."
    if defaults and extra["server_default"] and (default := _default(field, schema)) not in (None, [], {}):
        schema["default"] = default
        if NoneType in members_of(field.annotation):
            schema["nullable"] = True  # null says something else than nothing
    return {"description": schema.pop("description"), **schema}


def _typed(annotation: Any, limits: list[Any], extra: dict[str, Any], *, defaults: bool) -> Schema:
    annotation, limits = _unwrapped(annotation, limits)
    if wire := next((limit for limit in limits if isinstance(limit, WireSchema)), None):
        schema = dict(wire.schema)
        if extra.get("unit") == "bytes":
            schema["x-kubernetes-validations"] = [_whole_bytes(limits)]
        return schema
    if blocks := blocks_in(annotation):
        return _by_name(blocks[0]) if blocks[0].one_schema else block_schema(blocks, defaults=defaults)
    origin = get_origin(annotation)
    if origin is Literal:
        return {"type": "string", "maxLength": 253, "enum": list(get_args(annotation))}
    if origin is list:
        return _list_schema(annotation, limits, extra, defaults=defaults)
    if origin is tuple:
        count = len(get_args(annotation))
        item = _typed(get_args(annotation)[0], [], {}, defaults=False)
        size = {"minItems": count, "maxItems": count, "x-kubernetes-list-type": "atomic"}
        return {"type": "array", "items": item, **size}
    if origin is dict:
        key, value = get_args(annotation)
        size = {"maxProperties": _limit(limits, "max_length")}
        if value is Any:
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True, **size}
        inner = _typed(value, [], {}, defaults=False)
        return {"type": "object", "additionalProperties": inner, **size, **_keys(key)}
    made: Schema = _PLAIN[annotation](limits)
    return made


def _by_name(block: type[SpecBlock]) -> Schema:
    """A block whose fields are all of one other: a mapping with one schema, its keys by a rule."""
    names = list(fields_of(block))
    (inner,) = {member for field in block.model_fields.values() for member in blocks_in(field.annotation)}
    return {
        "description": _sentence([block]),
        "type": "object",
        "maxProperties": len(names),
        "additionalProperties": block_schema([inner]),
        "x-kubernetes-validations": [
            {
                "rule": f"self.all(k, k in {names})",
                "message": f"A key is one of {', '.join(names)}. Write one of these.",
            }
        ],
    }


def _list_schema(annotation: Any, limits: list[Any], extra: dict[str, Any], *, defaults: bool) -> Schema:
    item = item_block(annotation)
    inner = get_args(annotation)[0]
    schema: Schema = {
        "type": "array",
        "maxItems": _limit(limits, "max_length"),
        "items": block_schema([item], defaults=defaults) if item else _typed(inner, [], {}, defaults=False),
    }
    if (shortest := _limit(limits, "min_length")) is not None:
        schema["minItems"] = shortest
    key = extra.get("list_key")
    schema["x-kubernetes-list-type"] = "map" if key else "atomic"
    if key:
        schema["x-kubernetes-list-map-keys"] = [to_camel(key)]
    return schema


def _keys(key: Any) -> Schema:
    """The form of a map's keys, for which a schema has no words."""
    _, limits = _unwrapped(key, [])
    shape = _string(limits)
    terms = []
    if "maxLength" in shape:
        terms.append(f"size(k) <= {shape['maxLength']}")
    if "minLength" in shape:
        terms.append(f"size(k) >= {shape['minLength']}")
    if "pattern" in shape:
        terms.append(f"k.matches('{shape['pattern']}')")
    if not terms:
        return {}
    meant = MEANING.get(shape.get("pattern", ""), "text")
    message = f"A key is {meant}, of at most {shape['maxLength']} characters. Write it so."
    return {"x-kubernetes-validations": [{"rule": f"self.all(k, {' && '.join(terms)})", "message": message}]}


def _string(limits: list[Any]) -> Schema:
    schema: Schema = {"type": "string"}
    for name, key in (("minLength", "min_length"), ("maxLength", "max_length"), ("pattern", "pattern")):
        if (limit := _limit(limits, key)) is not None:
            schema[name] = limit
    return schema


def _number(kind: Schema) -> Any:
    def made(limits: list[Any]) -> Schema:
        schema = dict(kind)
        for name, inclusive, exclusive in (("minimum", "ge", "gt"), ("maximum", "le", "lt")):
            for key in (inclusive, exclusive):
                limit = _limit(limits, key)
                if limit is not None and abs(limit) <= _LARGEST:
                    schema[name] = limit
                    if key == exclusive:
                        schema[f"exclusive{name.capitalize()}"] = True
        return schema

    return made


_PLAIN: dict[Any, Any] = {
    str: _string,
    int: _number({"type": "integer", "format": "int64"}),
    float: _number({"type": "number", "format": "double"}),
    bool: lambda limits: {"type": "boolean"},
    datetime: lambda limits: {"type": "string", "format": "date-time", "maxLength": 64},
}


def _unwrapped(annotation: Any, limits: list[Any]) -> tuple[Any, list[Any]]:
    """The one type that an annotation allows beside null, with all limits around it. Unions of blocks stay."""
    while True:
        if hasattr(annotation, "__metadata__") and not blocks_in(annotation):
            annotation, limits = get_args(annotation)[0], [*limits, *annotation.__metadata__]
            continue
        given = [member for member in get_args(annotation) if member is not NoneType]
        if NoneType in get_args(annotation) and len(given) == 1:
            annotation = given[0]
            continue
        return annotation, limits


def _limit(limits: list[Any], key: str) -> Any:
    """The value of a limit, wherever it was declared: on the field, on its type, or in a Field() on its type."""
    for limit in limits:
        if isinstance(limit, FieldInfo):
            if (found := _limit(list(limit.metadata), key)) is not None:
                return found
        elif getattr(limit, key, None) is not None:
            return getattr(limit, key)
    return None


def _default(field: FieldInfo, schema: Schema) -> Any:
    if field.default_factory is not None:
        made = field.default_factory()  # type: ignore[call-arg]
        if isinstance(made, BaseModel):
            return {
                name: inner["default"] for name, inner in schema.get("properties", {}).items() if "default" in inner
            }
        if isinstance(made, list):
            return [
                item.model_dump(mode="json", exclude_none=True) if isinstance(item, SpecBlock) else item
                for item in made
            ]
        return made
    if field.default is PydanticUndefined:
        return None
    if schema.get("x-kubernetes-int-or-string") and isinstance(field.default, int):
        return kubernetes_bytes(field.default)
    return list(field.default) if isinstance(field.default, tuple) else field.default


def _whole_bytes(limits: list[Any]) -> Schema:
    least, most = _limit(limits, "ge"), _limit(limits, "le")
    size = "quantity(string(self))"
    number = f"{size}.asApproximateFloat()"
    return {
        "rule": f"{number} >= {least}.0 && {number} <= {most}.0 && "
        f"{size}.sub(int({number} + 0.5)).asApproximateFloat() == 0.0",
        "message": f"A size is a whole number of bytes from {show_bytes(least)} to {show_bytes(most)}. "
        "Write a number, or one with Ki, Mi, Gi, Ti.",
    }


def _key_schema(blocks: list[type[SpecBlock]], field: FieldInfo, schema: Schema) -> Schema:
    """The key that tells the members of a union apart takes the values of all; its default is the first member's."""
    tags = [tag for block in blocks for tag in tags_of(block)]
    keyed = {**schema, "enum": tags}
    first = fields_of(blocks[0])[blocks[0].union_key]
    if first.default is not PydanticUndefined:
        keyed["default"] = first.default
    return keyed


def _always_required(name: str, blocks: list[type[SpecBlock]]) -> bool:
    """Whether every member of a union needs a field; the key itself may have a default."""
    fields = [fields_of(block).get(name) for block in blocks]
    return all(field is not None and field.is_required() for field in fields)


def _union_rules(blocks: list[type[SpecBlock]]) -> list[Schema]:
    """That a field is given only in the members that have it, and always in those that need it."""
    rules: list[Schema] = []
    if len(blocks) < 2:
        return rules
    key = blocks[0].union_key
    names = dict.fromkeys(name for block in blocks for name in fields_of(block))
    for name in names:
        having = [tag for block in blocks if name in fields_of(block) for tag in tags_of(block)]
        missing = [tag for block in blocks if name not in fields_of(block) for tag in tags_of(block)]
        if missing:
            rules.append(
                {
                    "rule": f"self.{key} in {having} || !has(self.{name})",
                    "message": f"{name} is a field of {key} {' or '.join(having)}. "
                    f"Remove it, or set {key}: {having[0]}.",
                }
            )
        needing = [
            tag
            for block in blocks
            if name in fields_of(block) and fields_of(block)[name].is_required() and name != key
            for tag in tags_of(block)
        ]
        if needing and not _always_required(name, blocks):
            rules.append(
                {
                    "rule": f"!(self.{key} in {needing}) || has(self.{name})",
                    "message": f"{key} {' or '.join(needing)} needs {name}. Give {name}.",
                }
            )
    return rules


def _sentence(blocks: list[type[SpecBlock]]) -> str:
    return " Or: ".join(" ".join(str(block.__doc__).split()) for block in blocks)
