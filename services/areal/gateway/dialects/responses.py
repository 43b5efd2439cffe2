"""OpenAI's responses dialect: `POST /v1/responses`. Pure mapping; `previous_response_id` names an earlier answer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from areal.gateway import admission
from areal.gateway.dialects.chat import digest, flag, positive
from areal.gateway.dialects.chat import error as error
from areal.gateway.dialects.dialect import DialectReply, DialectRequest, read_object
from areal.gateway.dialects.response_events import ResponseEvents
from areal.gateway.dialects.response_items import ended_early, item_of, items_of
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import Message, read_messages
from areal.gateway.session import SessionRequest
from areal.gateway.tools import parse_tools

FIELDS: Mapping[str, admission.Field] = {
    **admission.read_fields(
        "model", "input", "instructions", "max_output_tokens", "stream", "tools", "previous_response_id"
    ),
    **dict.fromkeys(("temperature", "top_p"), admission.SAMPLED),
    "tool_choice": admission.shaping("auto", "none"),
    "parallel_tool_calls": admission.shaping(True),
    "text.format": admission.shaping({"type": "text"}),
    "conversation": admission.Field(
        admission.Treatment.REFUSED, "no conversation is kept here: give its items as input"
    ),
    "prompt": admission.Field(admission.Treatment.REFUSED, "no prompt is kept here: give its text as input"),
    "truncation": admission.Field(admission.Treatment.IGNORED, "a history is never cut", (None, "disabled")),
    "background": admission.Field(admission.Treatment.IGNORED, "answers are waited for", (None, False)),
    "top_logprobs": admission.Field(admission.Treatment.IGNORED, "log-probabilities are told by chat", (None, 0)),
}


def parse(body: bytes, rules: admission.AdmissionRules) -> DialectRequest:
    """See `Dialect.parse`."""
    fields = read_object(body)
    ignored = admission.admit(admission.spread(fields, "text"), FIELDS, rules)
    given = fields.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise CallRefusal("input has to be a text or a list with at least one item", field="input")
    listed = parse_tools(fields.get("tools"))
    messages = _joined(read_messages(_entries(items, listed.named), images=rules.images))
    if fields.get("instructions"):
        messages.insert(0, Message("system", str(fields["instructions"])))
    question = SessionRequest(
        messages=tuple(messages),
        digest=digest(fields),
        follows=_followed(fields.get("previous_response_id")),
        tools=listed.tools,
        calls_tools=fields.get("tool_choice") != "none",
        max_tokens=positive(fields.get("max_output_tokens"), "max_output_tokens"),
        overridden=admission.overridden(fields, rules.sampling),
    )
    stream = flag(fields, "stream")
    return DialectRequest(question, fields, stream, (*ignored, *listed.dropped), named=listed.named)


def _followed(name: Any) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or not name.startswith("resp_"):
        raise CallRefusal(f"{name!r} is no response of this session", field="previous_response_id")
    return name.removeprefix("resp_")


def _entries(items: list[Any], named: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """Items as messages of the chat API, each with its place. Raises Refused for items of another kind."""
    flattened = {own: told for told, own in named.items()}
    for number, item in enumerate(items):
        place = f"input[{number}]"
        kind = (item.get("type") or "message") if isinstance(item, Mapping) else "message"
        if kind == "message":
            yield place, item
        elif kind == "reasoning":
            parts = item.get("content")
            texts = [part.get("text") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
            if thought := "".join(text for text in texts if isinstance(text, str)):
                yield place, {"role": "assistant", "reasoning_content": thought}
        elif kind == "function_call":
            own = (str(item.get("namespace") or ""), str(item.get("name") or ""))
            function = {"name": flattened.get(own, item.get("name")), "arguments": item.get("arguments")}
            yield place, {"role": "assistant", "tool_calls": [{"id": item.get("call_id"), "function": function}]}
        elif kind == "function_call_output":
            yield place, {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
        else:
            raise CallRefusal(f"{place} is {kind!r}, which is not known here", field=place)


def _joined(read: Sequence[Message]) -> list[Message]:
    """Reasoning, text and calls in a row are one answer."""
    made: list[Message] = []
    for message in read:
        if not made or not (made[-1].role == message.role == "assistant") or message.reasoning is not None:
            made.append(message)
            continue
        last = made[-1]
        made[-1] = replace(last, text=last.text + message.text, tool_calls=last.tool_calls + message.tool_calls)
    return made


def whole(reply: DialectReply) -> dict[str, Any]:
    """See `Dialect.whole`."""
    early = ended_early(reply)
    told = {
        "status": "incomplete" if early else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if early else None,
        "output": [item_of(reply, number, part) for number, part in enumerate(items_of(reply))],
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": reply.answer_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + reply.answer_tokens,
        },
    }
    return head(reply) | told


def head(reply: DialectReply) -> dict[str, Any]:
    """A response that has just begun."""
    fields = reply.fields
    return {
        "id": f"resp_{reply.session}_{reply.calls[0].number}",
        "object": "response",
        "created_at": reply.created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": fields.get("instructions"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "metadata": fields.get("metadata") or {},
        "model": reply.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": fields.get("previous_response_id"),
        "temperature": fields.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": fields.get("tool_choice") or "auto",
        "tools": fields.get("tools") or [],
        "top_p": fields.get("top_p"),
        "truncation": "disabled",
        "usage": None,
    }


def events(reply: DialectReply) -> ResponseEvents:
    """See `Dialect.events`."""
    return ResponseEvents(reply, head(reply), lambda: whole(reply))
