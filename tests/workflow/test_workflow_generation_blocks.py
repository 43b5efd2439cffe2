"""Places of generation blocks in a rendered chat: those that transformers finds, without changing the text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from areal.errors import DataError
from areal.workflow.rows.rendering import generation_blocks
from areal.workflow.tokenizer import Tokenizer
from jinja2 import UndefinedError
from support.char_tokenizer import write_tokenizer

CHAT = [
    {"role": "user", "content": "7 + 8?"}, {"role": "assistant", "content": " 15 "},
    {"role": "user", "content": "And 9?"}, {"role": "assistant", "content": "24\n"},
]  # fmt: skip
WRITTEN = {
    "in a line": "<a>{% generation %}{{ m.content }}{% endgeneration %}<e>",
    "on lines": "<a>\n  {% generation %}\n  {{ m.content }}\n  {% endgeneration %}\n<e>",
    "all minus": "<a>\n  {%- generation -%}\n  {{ m.content }}\n  {%- endgeneration -%}\n<e>",
    "one minus": "<a>\n  {%- generation %}\n  {{ m.content }}\n  {%- endgeneration %}\n<e>",
    "inner minus": "<a>\n  {% generation -%}\n  {{ m.content }}\n  {% endgeneration -%}\n<e>",
    "plus": "<a>\n  {%+ generation %}\n  {{ m.content }}\n  {%+ endgeneration %}\n<e>",
    "end token inside": "<a>{%generation%}{{ m.content + '<e>\n' }}{%endgeneration%}",
    "with a tag inside": "<a>{% generation %}{% if true %}\n{{ m.content }}\n{% endif %}\n{% endgeneration %}\n<e>",
}
AROUND = (
    "{{% for m in messages %}}{{% if m.role == 'user' %}}<u>{{{{ m.content }}}}{{% else %}}"
    "{}{{% endif %}}{{% endfor %}}"
)  # fmt: skip


def templates() -> dict[str, str]:
    """Those above and, when AREAL_CHAT_TEMPLATES names a folder, those of released models with such blocks in it."""
    folder = os.environ.get("AREAL_CHAT_TEMPLATES")
    released = {path.stem: path.read_text() for path in sorted(Path(folder).glob("*.jinja"))} if folder else {}
    return {
        **{name: AROUND.format(text) for name, text in WRITTEN.items()},
        **{name: text for name, text in released.items() if "endgeneration" in text},
    }


@pytest.mark.parametrize("name", templates())
def test_blocks_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    template = templates()[name]
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_dir(tmp_path).with_template(template)
    whole = ""
    try:
        whole = tokenizer.render_chat(CHAT, generation_prompt=False)
        theirs, spans = render_jinja_template(
            conversations=[CHAT], chat_template=template, return_assistant_tokens_mask=True,
            bos_token="", eos_token="[EOS]", pad_token="[PAD]", unk_token="[UNK]",
        )  # fmt: skip
    except (DataError, UndefinedError):  # for one, it wants contents in parts
        theirs, spans = [""], []
    if whole != theirs[0]:
        assert name not in WRITTEN
        return
    found = generation_blocks(whole, tokenizer, lambda other: other.render_chat(CHAT, generation_prompt=False))
    assert found == [tuple(span) for span in spans[0]]


def test_a_template_without_blocks_and_a_text_with_marks_have_none(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    plain = Tokenizer.from_dir(tmp_path).with_template(AROUND.format("<a>{{ m.content }}"))
    assert generation_blocks("x", plain, lambda other: "x") is None
    blocks = plain.with_template(AROUND.format(WRITTEN["in a line"]))
    assert generation_blocks("\uf8fe", blocks, lambda other: "\uf8fe") is None
    assert generation_blocks("x", blocks, lambda other: "y\uf8fe\uf8ff") is None
