"""Constrained decoding by llguidance: what a request wants its answer to be, as a grammar of tokens.

Owns the reading of forced tools, JSON schemas, regular expressions and choices in every dialect. A forced call is
written as the model's chat template writes one: the text around its arguments is taken from a rendered call.
"""

import importlib.util
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from areal.gateway.faults import CallRefusal
from areal.gateway.messages import Message, ToolCall
from areal.gateway.session import SessionRequest
from areal.gateway.templates.template import Template
from areal.workflow.tokenizer import Tokenizer

FORMATS = ("response_format", "text.format", "output_config.format", "output_format")
_SINGLE = ("parallel_tool_calls", "disable_parallel_tool_use")  # a forced call is one
_EXTENSIONS = ("json_schema", "regex", "structured_outputs", "guided_json", "guided_regex", "guided_choice")
FIELDS = frozenset((*FORMATS, *_SINGLE, *_EXTENSIONS, "tool_choice"))
"""Fields that are honoured where llguidance is installed."""
_SPACES: Any = {"whitespace_pattern": r"[ \t\r\n]{1,32}"}  # of JSON, unless a schema says: a model may never end them
_NAME, _ARGUMENTS = "areal_name", {"areal": "arguments"}


def available() -> bool:
    """Whether llguidance is installed."""
    return importlib.util.find_spec("llguidance") is not None


class TokenMatcher:
    """One answer on its way through a grammar; used by the engine's thread alone."""

    def __init__(self, matcher: Any, vocab: int) -> None:
        self._matcher = matcher
        self._words = -(-vocab // 32)
        self._vocab = vocab

    def forbid(self, logits: torch.Tensor) -> None:
        """Make the tokens impossible that can't come next, in place; `logits` is [vocab]."""
        mask: NDArray[np.uint32] = np.zeros(self._words, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: self._vocab]
        logits[torch.from_numpy(allowed == 0)] = -math.inf

    def take(self, token: int) -> None:
        """This token came."""
        self._matcher.consume_token(token)


class Grammars:
    """Makes the matchers of one model's answers."""

    def __init__(self, tokenizer: Tokenizer, template: Template, vocab: int, ends: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._vocab = vocab
        self._ends = list(ends)

    @cached_property
    def _tokens(self) -> Any:
        from llguidance import LLTokenizer

        return LLTokenizer(self._tokenizer.to_json(), n_vocab=self._vocab, eos_token=self._ends)

    def matcher(self, fields: Mapping[str, Any], question: SessionRequest) -> TokenMatcher | None:
        """For the answer of a request; None where anything may be said. Raises Refused for a grammar that is none."""
        called = self._called(fields, question)
        wanted = [*called, *_shapes(fields)]
        choice = fields.get("tool_choice")
        single = isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use")
        if question.tools and not called and (single or fields.get("parallel_tool_calls") is False):
            raise CallRefusal("only a call that is forced can be held to be the only one", field=_SINGLE[bool(single)])
        if not wanted:
            return None
        if len(wanted) > 1:
            raise CallRefusal(
                f"{wanted[0][0]} and {wanted[1][0]} both say what the answer has to be", field=wanted[1][0]
            )
        from llguidance import LLMatcher

        (field, grammar), *_ = wanted
        if complaint := LLMatcher.validate_grammar(grammar, self._tokens):
            raise CallRefusal(f"{field} is no grammar that can be followed: {complaint[:500]}", field=field)
        return TokenMatcher(LLMatcher(self._tokens, grammar, log_level=0), self._vocab)

    def _called(self, fields: Mapping[str, Any], question: SessionRequest) -> list[tuple[str, str]]:
        """The grammar of one call, where a call is forced: of any tool, or of the one that is named."""
        choice = fields.get("tool_choice")
        kind = choice.get("type") if isinstance(choice, Mapping) else choice
        if kind in (None, "auto", "none"):
            return []
        inner = choice.get("function", choice) if isinstance(choice, Mapping) else {}
        name = inner.get("name") if isinstance(inner, Mapping) else None
        functions = [tool["function"] for tool in question.tools if name in (None, tool["function"]["name"])]
        if kind not in ("required", "any", "tool", "function"):
            raise CallRefusal(f"tool_choice {kind!r} can't be done by this engine", field="tool_choice")
        if not functions:
            raise CallRefusal("tool_choice asks for a tool that the request doesn't have", field="tool_choice")
        before, behind = self._around(question)
        rules, calls = [], []
        for number, function in enumerate(functions):
            calls.append(
                f"{self._literal(before.replace(_NAME, function['name']))} args{number} {self._literal(behind)}"
            )
            schema = {"type": "object", "x-guidance": _SPACES, **(function.get("parameters") or {})}
            rules.append(f"args{number}: %json {json.dumps(schema)}")
        return [("tool_choice", "\n".join([f"start: {' | '.join(calls)}", *rules]))]

    def _around(self, question: SessionRequest) -> tuple[str, str]:
        """What the template writes before and behind the arguments of a call."""
        tool = {"type": "function", "function": {"name": _NAME, "parameters": {"type": "object"}}}
        call = Message("assistant", "", (ToolCall("call00000", _NAME, json.dumps(_ARGUMENTS)),))
        chat = [Message("user", "q")]
        prompt = self._template.rendered(chat, [tool])
        whole = self._template.rendered([*chat, call], [tool], opened=False)
        found = re.search(r'\{\s*"areal":\s*"arguments"\s*\}', whole[len(prompt) :])
        if not whole.startswith(prompt) or found is None:
            raise CallRefusal(
                "this model's form of calls can't be forced", code="unsupported_field", field="tool_choice"
            )
        before, behind = whole[len(prompt) :][: found.start()], whole[len(prompt) :][found.end() :]
        ends = [at for end in self._tokenizer.end_texts if (at := behind.find(end)) >= 0]
        return before.lstrip("\n"), behind[: min(ends, default=len(behind))]

    def _literal(self, text: str) -> str:
        """A text in a grammar; added tokens are named by their ids."""
        added = sorted(self._tokenizer.added_texts, key=len, reverse=True)
        pieces = re.split(f"({'|'.join(map(re.escape, added))})", text) if added else [text]
        ids = {piece: int(self._tokenizer.encode(piece, special=False)[0]) for piece in pieces if piece in added}
        return " ".join(f"<[{ids[piece]}]>" if piece in ids else json.dumps(piece) for piece in pieces if piece)


def _shapes(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Grammars of formats and of engines' extensions, each with its field."""
    from llguidance import LLMatcher

    found: list[tuple[str, str, Any]] = []  # (field, kind, value)
    for name in FORMATS:
        outer, _, part = name.partition(".")
        value = fields.get(outer)
        if part:
            value = value.get(part) if isinstance(value, Mapping) else None
        kind = value.get("type") if isinstance(value, Mapping) else None
        if kind == "json_object":
            found.append((name, "json", {"type": "object"}))
        elif kind == "json_schema" and isinstance(value, Mapping):
            told = value.get("json_schema", value)
            found.append((name, "json", told.get("schema") if isinstance(told, Mapping) else None))
        elif value is not None and kind != "text":
            raise CallRefusal(f"{name} is of type {kind!r}; known are text, json_object and json_schema", field=name)
    structured = fields.get("structured_outputs")
    for kind in ("json", "regex", "choice"):
        inner = structured.get(kind) if isinstance(structured, Mapping) else None
        found += [("structured_outputs", kind, inner)] if inner is not None else []
        given = fields.get(f"guided_{kind}")
        found += [(f"guided_{kind}", kind, given)] if given is not None else []
    for name, kind in (("json_schema", "json"), ("regex", "regex")):
        found += [(name, kind, fields[name])] if fields.get(name) is not None else []
    grammars = []
    for name, kind, value in found:
        try:
            if kind == "json":
                grammars.append((name, LLMatcher.grammar_from_json_schema(value, defaults=_SPACES)))
            else:
                texts = [re.escape(str(one)) for one in value] if kind == "choice" else [str(value)]
                grammars.append((name, LLMatcher.grammar_from_regex("|".join(texts))))
        except (ValueError, TypeError) as error:
            raise CallRefusal(f"{name} is no {kind} that can be followed: {error}", field=name) from None
    return grammars
