"""JSON transcoding of protobuf messages: field names as in the proto, unknown fields refused with their path.

One addition to protobuf's JSON form: a JSON object or array may stand for the bytes of a suite's `json`.
"""

import base64
import json
import re
from typing import Any, NoReturn, TypeVar

from areal.v1 import sandbox_pb2 as pb
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

_STEP = re.compile(r"Failed to parse (\w+) field: ")
_UNKNOWN = re.compile(r'has no field named "(.*?)" at "(.*?)"')


class MalformedError(Exception):
    """A body that is no such message; says which field."""


def message_of(kind: type[M], body: bytes) -> M:
    """Raises MalformedError for what is no JSON, no object, or no such message."""
    try:
        document = json.loads(body or b"{}", parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise MalformedError("the body is no JSON object")
    try:
        _embed_suites(document, kind.DESCRIPTOR)
        return json_format.ParseDict(document, kind())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise MalformedError(_with_path(str(error))) from None


def json_of(message: Message) -> bytes:
    """One line. Fields without presence are always there; a score only when there is one."""
    document = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _embed_suites(document: dict[str, Any], descriptor: Any) -> None:
    if descriptor.full_name == pb.Suite.DESCRIPTOR.full_name and isinstance(document.get("json"), dict | list):
        document["json"] = base64.b64encode(json.dumps(document["json"]).encode()).decode()
    for field in descriptor.fields:
        value = document.get(field.name)
        if field.type == FieldDescriptor.TYPE_MESSAGE and isinstance(value, dict):
            _embed_suites(value, field.message_type)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _with_path(said: str) -> str:
    """`limits.wall_ms: Value out of range`, of what protobuf says."""
    reason = _STEP.sub("", said).partition("\n")[0].rstrip(".")
    if unknown := _UNKNOWN.search(said):
        _root, _, parent = unknown[2].partition(".")
        return f"{parent}.{unknown[1]}: there is no such field".removeprefix(".")
    path = ".".join(_STEP.findall(said))
    return f"{path}: {reason}" if path else reason
