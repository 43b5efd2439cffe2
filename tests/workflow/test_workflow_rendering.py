"""A chat is rendered whole by any template, or refused with the message that the template loses."""

from __future__ import annotations

import contextlib
import os
from itertools import product
from pathlib import Path

import pytest
from areal.errors import DataError
from areal.workflow.content import ChatShape
from areal.workflow.rows.forms import answer_row, prompt_row
from areal.workflow.rows.rendering import render_chat
from areal.workflow.tokenizer import Tokenizer
from support.char_tokenizer import write_tokenizer

ASKED = {"role": "user", "content": "7 + 8?"}
SAID = {"role": "assistant", "content": "15"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "add", "arguments": {"to": 'a "b"'}}}],
}

TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
OPENED = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
TEMPLATES = {
    "turns": TURNS + OPENED,
    "trimmed": TURNS.replace("m.content", "m.content|trim") + OPENED,
    "generation tags": "{% for m in messages %}<|{{ m.role }}|>{% generation %}{{ m.content }}<|end|>"
    "{% endgeneration %}{% endfor %}" + OPENED,
    "a system text that moves": "{% for m in messages if m.role != 'system' %}<|{{ m.role }}|>{% if loop.last and "
    "messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}{{ m.content }}<|end|>{% endfor %}" + OPENED,
    "an answer that is split": "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>"
    "{% endfor %}" + OPENED,
}
LOSES = {
    "other roles": "{% for m in messages if m.role in ('user', 'assistant') %}{{ m.content }}{% endfor %}",
    "all but the last": "{{ messages[-1].content }}",
    "texts beyond three letters": "{% for m in messages %}{{ m.content[:3] }}{% endfor %}",
    "capitals": "{% for m in messages %}{{ m.content|upper }}{% endfor %}",
    "twice": TURNS + TURNS,
    "backwards": "{% for m in messages|reverse %}{{ m.content }}{% endfor %}",
}


def tokenizer(directory: Path, template: str) -> Tokenizer:
    write_tokenizer(directory)
    return Tokenizer.from_dir(directory).with_template(template)


SYSTEM = {"role": "system", "content": "Be brief."}
CHAT = [SYSTEM, ASKED, {"role": "assistant", "content": "<think>hm</think>15"}, {"role": "user", "content": "and 9?"}]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_is_what_the_template_writes(name: str, tmp_path: Path) -> None:
    model = tokenizer(tmp_path, TEMPLATES[name])
    assert render_chat(CHAT, model) == model.render_chat(CHAT)
    assert render_chat(CHAT, model, generation_prompt=False) == model.render_chat(CHAT, generation_prompt=False)


@pytest.mark.parametrize("name", LOSES)
def test_a_template_that_loses_a_text_is_refused_with_the_message(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"message \d|order of the messages"):
        render_chat([SYSTEM, *CHAT[1:]], tokenizer(tmp_path, LOSES[name]))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_begun_answer_is_left_open_with_its_last_space(name: str, tmp_path: Path) -> None:
    text = render_chat(
        [ASKED, {"role": "assistant", "content": "It is "}], tokenizer(tmp_path, TEMPLATES[name]), continues=True
    )
    assert text.endswith("<|assistant|>It is ")


def test_tools_and_calls_that_a_template_leaves_out_are_refused(tmp_path: Path) -> None:
    plain = tokenizer(tmp_path, TEMPLATES["turns"])
    with pytest.raises(DataError, match="leaves out the tool 'add'"):
        render_chat([ASKED], plain, tools=[TOOL])
    with pytest.raises(DataError, match="a call of message 1"):
        render_chat([ASKED, CALLED], plain)
    shows = "{{ tools|tojson }}{% for m in messages %}{{ m.content }}{{ m.tool_calls|default([])|tojson }}{% endfor %}"
    assert "add" in render_chat([ASKED, CALLED], plain.with_template(shows), tools=[TOOL])


def test_reasoning_that_a_template_leaves_out_of_the_answer_to_learn_is_refused(tmp_path: Path) -> None:
    model = tokenizer(tmp_path, TEMPLATES["turns"])
    row = {"messages": [ASKED, {**SAID, "reasoning": "seven, eight"}]}
    with pytest.raises(DataError, match="reasoning of message 1"):
        render_chat(answer_row(row).messages, model, generation_prompt=False)


def test_any_failure_of_a_template_is_a_data_error(tmp_path: Path) -> None:
    for template in ("{{ messages[0].content + 1 }}", "{{ messages[9].content }}", "{{ messages|sum }}"):
        with pytest.raises(DataError, match="the chat template refused the messages"):
            render_chat([ASKED], tokenizer(tmp_path, template))


SHAPES = [ChatShape(*flags) for flags in product((False, True), repeat=3)]


def released() -> dict[str, str]:
    """The templates above and, when AREAL_CHAT_TEMPLATES names a folder, those of released models in it."""
    folder = os.environ.get("AREAL_CHAT_TEMPLATES")
    files = sorted(Path(folder).glob("*.jinja")) if folder else []
    return {**TEMPLATES, **{path.stem: path.read_text() for path in files}}


@pytest.mark.parametrize("name", released())
def test_a_template_renders_as_transformers_does_or_is_refused_in_words(name: str, tmp_path: Path) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    template = released()[name]
    model = tokenizer(tmp_path, template)
    rows = [{"prompt": "7 + 8?"}, {"messages": CHAT}, {"messages": [ASKED, CALLED, {"role": "tool", "content": "15"}]}]
    equal = 0
    for row in rows:
        chat = prompt_row(row)
        try:
            ours = render_chat(chat.messages, model, tools=chat.tools)
        except DataError:
            continue
        theirs = set()
        for shape in SHAPES:  # a template may show texts only as parts, or take arguments only as text
            with contextlib.suppress(Exception):
                theirs |= set(
                    render_jinja_template(
                        conversations=[shape.shaped(chat.messages)], chat_template=template, add_generation_prompt=True,
                        bos_token="", eos_token="[EOS]", pad_token="[PAD]", unk_token="[UNK]",
                    )[0]
                )  # fmt: skip
        assert ours in theirs
        equal += 1
    assert equal or name not in TEMPLATES
