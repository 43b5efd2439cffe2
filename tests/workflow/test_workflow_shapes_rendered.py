"""Every shape of row by every template: what transformers renders of its normal form, or an error in words."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from areal.errors import DataError
from areal.workflow.examples import example, pair
from areal.workflow.rlvr import prompt_of
from areal.workflow.rows.forms import answer_row, pair_row, prompt_row
from areal.workflow.rows.rendering import render_chat
from areal.workflow.tokenizer import Tokenizer
from support.char_tokenizer import write_tokenizer

with gzip.open(Path(__file__).parent / "row_shapes.jsonl.gz", "rt") as file:
    SHAPES = [json.loads(line) for line in file]

SHOWS_ALL = (
    "{% for tool in tools or [] %}<tool>{{ tool | tojson }}\n{% endfor %}{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}[EOS]"
    "\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
KNOWS_THREE_ROLES = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant', 'system') %}<{{ m.role }}>{{ m.content | trim }}[EOS]"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def templates() -> dict[str, str]:
    """Two of our own and, when AREAL_CHAT_TEMPLATES names a folder, those of released models in it."""
    folder = os.environ.get("AREAL_CHAT_TEMPLATES")
    released = {path.stem: path.read_text() for path in sorted(Path(folder).glob("*.jinja"))} if folder else {}
    return {"shows all": SHOWS_ALL, "knows three roles": KNOWS_THREE_ROLES, **released}


def by_transformers(
    template: str, messages: Sequence[Any], tools: Sequence[Any], *, opened: bool = False, continues: bool = False
) -> set[str]:
    """What it renders of the messages in any form that the template knows."""
    from transformers.utils.chat_template_utils import render_jinja_template

    found = set()
    for chat in (messages, in_parts(messages), with_arguments_as_text(messages)):
        with contextlib.suppress(Exception):  # a template's own, for a form of messages that it does not know
            rendered, _ = render_jinja_template(
                conversations=[[dict(message) for message in chat]], tools=list(tools) or None, chat_template=template,
                add_generation_prompt=opened, continue_final_message=continues,
                bos_token="", eos_token="[EOS]", pad_token="[PAD]", unk_token="[UNK]",
            )  # fmt: skip
            found.add(str(rendered[0]).rstrip() if continues else str(rendered[0]))
    return found


def in_parts(messages: Sequence[Any]) -> list[Any]:
    """As templates of models with pictures want them."""
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]


def with_arguments_as_text(messages: Sequence[Any]) -> list[Any]:
    """As OpenAI's API has them."""
    told = copy.deepcopy(list(messages))
    for call in (call for message in told for call in message.get("tool_calls") or ()):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return told


def texts(shape: dict[str, Any], template: str, tokenizer: Tokenizer) -> list[tuple[str, set[str]]]:
    """What is rendered of a row here, and by transformers of its normal form. Raises DataError for a refused row."""
    row = shape["row"]
    if shape["use"] == "rl":
        ours, chat = prompt_of(row, tokenizer, chat_template=True).text, prompt_row(row)
        opened = not chat.continues
        theirs = by_transformers(template, chat.messages, chat.tools, opened=opened, continues=chat.continues)
        return [(ours.rstrip(), theirs) if chat.continues else (ours, theirs)]
    if shape["use"] == "sft":
        assert example(row, tokenizer, chat_template=True).trained
        told, tools = [answer_row(row).messages], answer_row(row).tools
    else:
        assert all(side.trained for side in pair(row, tokenizer, chat_template=True))
        sides, tools = pair_row(row), pair_row(row).tools
        told = [(*sides.prompt, *side) for side in (sides.chosen, sides.rejected)]
    return [
        (
            str(render_chat(messages, tokenizer, tools=tools, generation_prompt=False)),
            by_transformers(template, messages, tools),
        )
        for messages in told
    ]


@pytest.mark.parametrize("name", templates())
def test_no_template_makes_another_text_of_a_row_without_a_word(name: str, tmp_path: Path) -> None:
    template = templates()[name]
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_dir(tmp_path).with_template(template)
    right = 0
    for shape in SHAPES:
        try:
            found = texts(shape, template, tokenizer)
        except DataError:
            continue
        assert all(ours in theirs for ours, theirs in found), shape["shape"]
        right += 1
    assert right >= {"shows all": 62, "knows three roles": 40}.get(name, 0)
