"""From a dataset row to what the model reads."""

from collections.abc import Mapping
from typing import Any

from areal.errors import DataError
from areal.values.images import image_of
from areal.workflow.base import Prompt
from areal.workflow.rows.forms import prompt_row
from areal.workflow.rows.rendering import render_chat
from areal.workflow.tokenizer import Tokenizer

ROW_KWARGS = "chat_template_kwargs"


def prompt_of(row: Mapping[str, Any], tokenizer: Tokenizer, *, chat_template: bool | None = None) -> Prompt:
    """Tokenise a row's prompt, whatever shape it has (`areal.workflow.rows.forms`).

    Messages always go through the chat template; a text does when `chat_template` is true, or None and the tokenizer
    has one. Where the last message is the assistant's, its turn stays open: the model goes on with it. Control strings
    in what is said are encoded as text. Raises DataError for a row without a prompt, for one of which the template
    loses a text, and for arguments of the template that the job doesn't name.
    """
    chat = prompt_row(row, images=tokenizer.image_shape is not None)
    kwargs = row_kwargs(row, tokenizer)
    use_chat = tokenizer.has_chat_template if chat_template is None else chat_template
    if chat.plain and not use_chat:
        text = chat.messages[0]["content"]
        return Prompt(text, tokenizer.encode_plain(text))
    text = render_chat(chat.messages, tokenizer, tools=chat.tools, continues=chat.continues, kwargs=kwargs)
    images = tuple(map(image_of, chat.images))
    return Prompt(str(text), tokenizer.encode_chat(text, images), images)


def row_kwargs(row: Mapping[str, Any], tokenizer: Tokenizer) -> Mapping[str, Any]:
    """A row's arguments of the chat template, nulls left out. Raises DataError for names that the job doesn't name."""
    given = row.get(ROW_KWARGS)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise DataError(f"{ROW_KWARGS} is no object", fix='write {"enable_thinking": false}')
    found = {name: value for name, value in given.items() if value is not None}
    if strange := sorted(set(found) - set(tokenizer.kwargs)):
        raise DataError(
            f"{ROW_KWARGS} sets {', '.join(strange)}, which the job doesn't name",
            fix="name it with its usual value in model.chatTemplateKwargs, or drop the column",
        )
    return found
