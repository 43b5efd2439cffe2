"""OpenAI's responses dialect: `POST /v1/responses`. Pure mapping; `previous_response_id` names an earlier answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from areal.gateway import admission
from areal.gateway.dialects.chat import digest, flag, positive
from areal.gateway.dialects.chat import error as error
from areal.gateway.dialects.dialect import Delta, DialectReply, DialectRequest, read_object
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import Message, ToolCall, parse_tools, read_messages
from areal.gateway.reading import Part, Reasoning, Text
from areal.gateway.session import SessionRequest

# ---- Events of a streamed response, in the order of OpenAI's responses API. Pure mapping


class ResponseEvents:
    """See `Events`. Text and reasoning come in deltas, a call whole."""

    def __init__(self, reply: DialectReply, head: Mapping[str, Any], whole: Callable[[], dict[str, Any]]) -> None:
        self._reply = reply
        self._head = head
        self._whole = whole
        self._sequence = 0
        self._items = 0
        self._open: Text | Reasoning | None = None  # what was told of the item under way

    def begin(self) -> Iterator[bytes]:
        """The response without output."""
        yield self._event("response.created", {"response": self._head})
        yield self._event("response.in_progress", {"response": self._head})

    def delta(self, index: int, delta: Delta) -> Iterator[bytes]:
        """An item for each run of parts of a kind."""
        for part in delta.parts:
            if isinstance(part, ToolCall):
                yield from self._close()
                yield from self._call(part)
            else:
                if type(part) is not type(self._open):
                    yield from self._close()
                    yield from self._begin(part)
                assert self._open is not None
                self._open = replace(self._open, text=self._open.text + part.text)
                kind = "reasoning_text" if isinstance(part, Reasoning) else "output_text"
                yield self._inner(f"{kind}.delta", {"delta": part.text, **self._logprobs(part)})

    def finish(self, index: int) -> Iterator[bytes]:
        """The item under way is whole."""
        if not self._items and self._open is None:
            yield from self._begin(Text(""))
        yield from self._close("incomplete" if ended_early(self._reply) else "completed")

    def end(self) -> Iterator[bytes]:
        """The whole response."""
        kind = "response.incomplete" if ended_early(self._reply) else "response.completed"
        yield self._event(kind, {"response": self._whole()})

    def fault(self, error: CallRefusal) -> Iterator[bytes]:
        """As OpenAI's API tells an error in a stream."""
        yield self._event("error", {"code": error.code, "message": error.message, "param": error.field})

    def _begin(self, part: Text | Reasoning) -> Iterator[bytes]:
        self._open = replace(part, text="")
        item = item_of(self._reply, self._items, self._open, "in_progress")
        yield self._event("response.output_item.added", {"output_index": self._items, "item": item})
        if isinstance(part, Text):
            yield self._inner("content_part.added", {"part": text_part("")})

    def _close(self, status: str = "completed") -> Iterator[bytes]:
        part = self._open
        if part is None:
            return
        if isinstance(part, Text):
            yield self._inner("output_text.done", {"text": part.text, **self._logprobs(part)})
            yield self._inner("content_part.done", {"part": text_part(part.text)})
        else:
            yield self._inner("reasoning_text.done", {"text": part.text})
        self._open = None
        yield from self._done(part, status)

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        begun = item_of(self._reply, self._items, replace(call, arguments=""), "in_progress")
        place = {"item_id": begun["id"], "output_index": self._items}
        yield self._event("response.output_item.added", {"output_index": self._items, "item": begun})
        yield self._event("response.function_call_arguments.delta", {**place, "delta": call.arguments})
        done = {**place, "name": begun["name"], "arguments": call.arguments}
        yield self._event("response.function_call_arguments.done", done)
        yield from self._done(call)

    def _done(self, part: Part, status: str = "completed") -> Iterator[bytes]:
        item = item_of(self._reply, self._items, part, status)
        yield self._event("response.output_item.done", {"output_index": self._items, "item": item})
        self._items += 1

    def _inner(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        name = item_of(self._reply, self._items, self._open or Text(""))["id"]
        place = {"item_id": name, "output_index": self._items, "content_index": 0}
        return self._event(f"response.{kind}", {**place, **fields})

    @staticmethod
    def _logprobs(part: Part) -> dict[str, Any]:
        return {"logprobs": []} if isinstance(part, Text) else {}

    def _event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        body = orjson.dumps({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"


# ---- OpenAI's responses dialect: `POST /v1/responses`. Pure mapping; `previous_response_id` names an earlier answer


def parse(body: bytes, rules: admission.AdmissionRules) -> DialectRequest:
    """See `Dialect.parse`."""
    fields = read_object(body)
    ignored = admission.admit(admission.spread(fields, "text"), "responses", rules)
    given = fields.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise CallRefusal("input has to be a text or a list with at least one item", field="input")
    listed = parse_tools(fields.get("tools"))
    messages = _joined(read_messages(_entries(items, listed.named), images=rules.images))
    if told := fields.get("instructions"):
        messages[:0] = read_messages([("instructions", {"role": "system", "content": told})])
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
        raise CallRefusal(f"{name!r} is no response of this session: give its items", field="previous_response_id")
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
            raise CallRefusal(f"{place} is {kind!r}, which is not known here: leave it out", field=place)


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
    output = [item_of(reply, number, part) for number, part in enumerate(items_of(reply))]
    if early and output[-1]["type"] != "function_call":
        output[-1]["status"] = "incomplete"
    told = {
        "status": "incomplete" if early else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if early else None,
        "output": output,
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": reply.answer_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + reply.answer_tokens,
        },
    }
    return head(reply) | told


def head(reply: DialectReply) -> dict[str, Any]:
    """A response that has just begun. Sampling that the job overrides isn't told as if it had been done."""
    fields, overridden = reply.fields, reply.calls[0].question.overridden
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
        "temperature": None if "temperature" in overridden else fields.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": fields.get("tool_choice") or "auto",
        "tools": [_shown(tool) for tool in fields.get("tools") or ()],
        "top_p": None if "top_p" in overridden else fields.get("top_p"),
        "truncation": "disabled",
    }


def _shown(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as a response repeats it: of a function what a request may leave out, too."""
    return {**({"parameters": None, "strict": None} if tool.get("type") == "function" else {}), **tool}


def events(reply: DialectReply) -> ResponseEvents:
    """See `Dialect.events`."""
    return ResponseEvents(reply, head(reply), lambda: whole(reply))


# ---- Output items of a response: reasoning, text and calls as OpenAI's responses API shows them. Pure mapping


def items_of(reply: DialectReply) -> list[Part]:
    """The parts of a whole answer, one for each item."""
    answer = reply.calls[0].answer
    assert answer is not None
    parts: list[Part] = [] if answer.reasoning is None else [Reasoning(answer.reasoning)]
    if answer.text.strip() or not answer.tool_calls:
        parts.append(Text(answer.text))
    return [*parts, *answer.tool_calls]


def item_of(reply: DialectReply, number: int, part: Part, status: str = "completed") -> dict[str, Any]:
    """One item; `number` is its place among the items."""
    name = f"{reply.session}_{reply.calls[0].number}_{number}"
    if isinstance(part, ToolCall):
        space, own = reply.named.get(part.name, ("", part.name))
        called = {"call_id": part.id, "name": own, "arguments": part.arguments}
        if space:
            called["namespace"] = space
        return {"type": "function_call", "id": f"fc_{name}", **called, "status": status}
    if isinstance(part, Reasoning):
        content = [{"type": "reasoning_text", "text": part.text}]
        return {"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": content, "status": status}
    content = [] if status == "in_progress" else [text_part(part.text)]
    return {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": content, "status": status}


def text_part(text: str) -> dict[str, Any]:
    """The content of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def ended_early(reply: DialectReply) -> bool:
    """Whether the budget ended the answer."""
    result = reply.calls[0].result
    return result is not None and result.finish_reason == "length"
