"""Every field of a message is read outside the generated code."""

from __future__ import annotations

import ast
import importlib

from google.protobuf.descriptor import FileDescriptor
from support.sources import ROOT, modules, nodes, parsed

FILES = sorted(path.stem for path in (ROOT / "protos/areal/v1").glob("*.proto"))
PUBLIC = {"sandbox"}  # a product of its own: its callers are other programs
FOR_PEOPLE = {  # answers of control calls that a person makes
    "DrainAgentResponse.ended_requests",
    "GetProgressResponse.since_progress_s",
    "GetRolloutStatusResponse.staleness_violations_total",
}


def used_names() -> set[str]:
    """Attributes that the product's code reads or calls, and strings, by which JSON and getattr name fields."""
    names: set[str] = set()
    for node in nodes(parsed(path) for path in modules("services", "trainer", "bench")):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def files() -> list[FileDescriptor]:
    return [importlib.import_module(f"areal.v1.{stem}_pb2").DESCRIPTOR for stem in FILES if stem not in PUBLIC]


def test_every_field_is_read_outside_the_generated_code():
    used = used_names()
    messages = {message.name: message for file in files() for message in file.message_types_by_name.values()}
    unread = {f"{name}.{field.name}" for name, it in messages.items() for field in it.fields if field.name not in used}
    assert unread == FOR_PEOPLE
