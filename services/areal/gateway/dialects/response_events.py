"""Events of a streamed response, in the order of OpenAI's responses API. Pure mapping."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from areal.gateway.dialects.dialect import Delta, DialectReply
from areal.gateway.dialects.response_items import ended_early, item_of, text_part
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import ToolCall
from areal.gateway.reading import Part, Reasoning, Text


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
        yield from self._close()

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

    def _close(self) -> Iterator[bytes]:
        part = self._open
        if part is None:
            return
        if isinstance(part, Text):
            yield self._inner("output_text.done", {"text": part.text, **self._logprobs(part)})
            yield self._inner("content_part.done", {"part": text_part(part.text)})
        else:
            yield self._inner("reasoning_text.done", {"text": part.text})
        self._open = None
        yield from self._done(part)

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        begun = item_of(self._reply, self._items, replace(call, arguments=""), "in_progress")
        place = {"item_id": begun["id"], "output_index": self._items}
        yield self._event("response.output_item.added", {"output_index": self._items, "item": begun})
        yield self._event("response.function_call_arguments.delta", {**place, "delta": call.arguments})
        done = {**place, "name": begun["name"], "arguments": call.arguments}
        yield self._event("response.function_call_arguments.done", done)
        yield from self._done(call)

    def _done(self, part: Part) -> Iterator[bytes]:
        item = item_of(self._reply, self._items, part)
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
