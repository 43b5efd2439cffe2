"""From a dataset row to what the model reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal.errors import DataError
from areal.workflow.base import Prompt
from areal.workflow.tokenizer import Tokenizer

COLUMNS = ("messages", "prompt", "question")  # the first one that a row has is the prompt


def prompt_of(row: Mapping[str, Any], tokenizer: Tokenizer, *, chat_template: bool | None = None) -> Prompt:
    """Tokenise a row's prompt.

    A list of messages always goes through the chat template; a text does when `chat_template` is true, or None and the
    tokenizer has one. Raises DataError for a row without a prompt.
    """
    column = next((name for name in COLUMNS if row.get(name) is not None), None)
    if column is None:
        raise DataError(
            f"a row has none of the columns {', '.join(COLUMNS)}; it has {', '.join(map(str, row)) or 'none at all'}",
            fix="name the prompt's column `prompt`",
        )
    value = row[column]
    use_chat = tokenizer.has_chat_template if chat_template is None else chat_template
    if isinstance(value, str):
        if not use_chat:
            return Prompt(value, tokenizer.encode(value))
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise DataError(f"column {column} is a {type(value).__name__}", fix="give a text or a list of messages")
    text = tokenizer.render_chat(value)
    return Prompt(text, tokenizer.encode(text, special=False))
