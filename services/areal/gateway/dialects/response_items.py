"""Output items of a response: reasoning, text and calls as OpenAI's responses API shows them. Pure mapping."""

from typing import Any

from areal.gateway.dialects.dialect import DialectReply
from areal.gateway.messages import ToolCall
from areal.gateway.reading import Part, Reasoning, Text


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
    content = [text_part(part.text)] if status == "completed" else []
    return {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": content, "status": status}


def text_part(text: str) -> dict[str, Any]:
    """The content of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def ended_early(reply: DialectReply) -> bool:
    """Whether the budget ended the answer."""
    result = reply.calls[0].result
    return result is not None and result.finish_reason == "length"
