"""From a dataset row to what the model reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal.workflow.base import Prompt
from areal.workflow.rows.forms import prompt_row
from areal.workflow.rows.rendering import render_chat
from areal.workflow.tokenizer import Tokenizer


def prompt_of(row: Mapping[str, Any], tokenizer: Tokenizer, *, chat_template: bool | None = None) -> Prompt:
    """Tokenise a row's prompt, whatever shape it has (`areal.workflow.rows.forms`).

    Messages always go through the chat template; a text does when `chat_template` is true, or None and the tokenizer
    has one. Where the last message is the assistant's, its turn stays open: the model goes on with it. Raises DataError
    for a row without a prompt, and for one of which the template loses a text.
    """
    chat = prompt_row(row)
    use_chat = tokenizer.has_chat_template if chat_template is None else chat_template
    if chat.plain and not use_chat:
        text = chat.messages[0]["content"]
        return Prompt(text, tokenizer.encode(text))
    text = render_chat(chat.messages, tokenizer, tools=chat.tools, continues=chat.continues)
    return Prompt(text, tokenizer.encode(text, special=False))
