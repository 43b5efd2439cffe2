"""Extracts of the published descriptions of OpenAI's and Anthropic's APIs, as JSON Schema.

`python make.py openai openapi.json` reads the OpenAPI description of github.com/openai/openai-openapi (MIT), and
`python make.py anthropic src` the types of github.com/anthropics/anthropic-sdk-python (MIT), whose `src` it imports.
Each writes `<name>.json.gz` beside this file: the schemas of the endpoints that the gateway serves, without prose.
"""

from __future__ import annotations

import gzip
import importlib
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]
HERE = Path(__file__).parent
PATHS = {"chat": "/chat/completions", "completions": "/completions", "responses": "/responses"}
OPENAI = {
    "chat": "CreateChatCompletionResponse",
    "chat event": "CreateChatCompletionStreamResponse",
    "chat request": "CreateChatCompletionRequest",
    "completions": "CreateCompletionResponse",
    "completions event": "CreateCompletionResponse",
    "completions request": "CreateCompletionRequest",
    "responses": "Response",
    "responses event": "ResponseStreamEvent",
    "responses request": "CreateResponse",
    "models": "ListModelsResponse",
    "model": "Model",
    "error": "ErrorResponse",
}
ANTHROPIC = {
    "messages": "types:Message",
    "messages event": "types:RawMessageStreamEvent",
    "messages request": "types:MessageCreateParams",
    "beta messages": "types.beta:BetaMessage",
    "beta messages event": "types.beta:BetaRawMessageStreamEvent",
    "beta messages request": "types.beta:MessageCreateParams",
    "count": "types:MessageTokensCount",
    "model": "types:ModelInfo",
    "error": "types.shared:ErrorResponse",
}
PROSE = ("description", "title", "deprecated", "example", "examples", "externalDocs", "discriminator")


def openai(path: str) -> dict[str, Any]:
    """From the file of an OpenAPI description."""
    told = json.loads(Path(path).read_text())
    known = told["components"]["schemas"]
    roots = {use: {"$ref": f"#/$defs/{name}"} for use, name in OPENAI.items()}
    found = closure(roots, {name: plain(schema) for name, schema in known.items()})
    requests = {
        dialect: [example["request"]["curl"] for example in told["paths"][at]["post"]["x-oaiMeta"]["examples"]]
        for dialect, at in PATHS.items()
    }
    examples = {dialect: [body_of(request) for request in listed] for dialect, listed in requests.items()}
    return {"source": "github.com/openai/openai-openapi", "roots": roots, "examples": examples, "$defs": found}


def anthropic(path: str) -> dict[str, Any]:
    """From the sources of the Python client."""
    sys.path.insert(0, path)
    sys.modules["docstring_parser"] = types.ModuleType("docstring_parser")  # needed by helpers alone
    sys.modules["docstring_parser"].Docstring = sys.modules["docstring_parser"].parse = None  # type: ignore[attr-defined]
    from pydantic import TypeAdapter

    roots: Schema = {}
    known: Schema = {}
    for use, place in ANTHROPIC.items():
        module, _, name = place.partition(":")
        kind = getattr(importlib.import_module(f"anthropic.{module}"), name)
        space = "beta." if "beta" in module else ""
        schema = plain(TypeAdapter(kind).json_schema(ref_template=f"#/$defs/{space}{{model}}"))
        known |= {space + inner: found for inner, found in schema.pop("$defs", {}).items()}
        roots[use] = schema
    return {"source": "github.com/anthropics/anthropic-sdk-python", "roots": roots, "examples": {}, "$defs": known}


def body_of(curl: str) -> Any:
    """The JSON that an example of curl sends."""
    found = re.search(r"-d '(.*)'", curl, re.DOTALL)
    assert found, curl
    return json.loads(found[1])


def plain(schema: Any) -> Any:
    """A schema of OpenAPI without prose, and with `nullable` as JSON Schema says it."""
    if isinstance(schema, list):
        return [plain(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in PROSE and not key.startswith("x-")}
    nullable = kept.pop("nullable", False)
    made: Schema = {}
    for key, value in kept.items():
        if key in ("properties", "$defs"):
            made[key] = {name: plain(inner) for name, inner in value.items()}
        elif key == "$ref":
            made[key] = value.replace("#/components/schemas/", "#/$defs/")
        else:
            made[key] = value if key in ("enum", "const", "default", "required") else plain(value)
    return {"anyOf": [made, {"type": "null"}]} if nullable else made


def closure(roots: Schema, known: Schema) -> Schema:
    """The schemas that these refer to, and those that they refer to."""
    found: Schema = {}
    ahead = list(references(roots))
    while ahead:
        if (name := ahead.pop()) not in found:
            found[name] = known[name]
            ahead += references(found[name])
    return dict(sorted(found.items()))


def references(schema: Any) -> Iterator[str]:
    """Names that a schema refers to."""
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"].removeprefix("#/$defs/")
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from references(inner)


if __name__ == "__main__":
    name, path = sys.argv[1:]
    text = json.dumps({"openai": openai, "anthropic": anthropic}[name](path), separators=(",", ":"))
    (HERE / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
