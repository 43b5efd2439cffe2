"""A tokenizer read from a Hugging Face directory, without transformers."""

from __future__ import annotations

import json

import pytest
from areal.errors import DataError
from areal.workflow.tokenizer import Tokenizer
from areal_trainer.publish.exporter import side_files
from hypothesis import given
from hypothesis import strategies as st
from support.char_tokenizer import TEMPLATE, write_tokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), template=TEMPLATE)


@pytest.fixture(scope="module")
def tokenizer(directory):
    return Tokenizer.from_dir(directory)


@given(text=st.text(alphabet="0123456789=ab", min_size=1))
def test_decoding_undoes_encoding(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_decoding_leaves_the_end_token_out(tokenizer):
    assert tokenizer.decode([*tokenizer.encode("12").tolist(), 1]) == "12"
    assert tokenizer.decode([1], skip_special=False) == "[EOS]"


def test_end_tokens_are_gathered_from_every_file(directory, tmp_path):
    copy = write_tokenizer(tmp_path / "copy")
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 0]}))
    assert Tokenizer.from_dir(directory).eos_ids == {1}
    assert Tokenizer.from_dir(copy).eos_ids == {0, 1}


def test_a_chat_is_rendered_by_the_models_template(tokenizer):
    chat = [{"role": "user", "content": "12="}]
    assert tokenizer.render_chat(chat) == "<user>12=<assistant>"
    assert tokenizer.encode(tokenizer.render_chat(chat), special=False).tolist() == [
        3,
        *tokenizer.encode("12=").tolist(),
        4,
    ]


def test_a_turn_follows_an_answer_that_has_its_end_token(tokenizer):
    answered = tokenizer.encode_turn("ab")
    cut = tokenizer.encode_turn("ab", after_end=False)
    assert tokenizer.decode(answered, skip_special=False) == "<user>ab<assistant>"
    assert tokenizer.decode(cut, skip_special=False) == "[EOS]<user>ab<assistant>"


def test_without_a_template_a_turn_is_plain_text(tmp_path):
    tokenizer = Tokenizer.from_dir(write_tokenizer(tmp_path))
    assert tokenizer.decode(tokenizer.encode_turn("ab")) == "\nab\n"
    with pytest.raises(DataError, match="no chat template"):
        tokenizer.render_chat([])


def test_a_template_can_refuse_messages(tmp_path):
    tokenizer = Tokenizer.from_dir(write_tokenizer(tmp_path, template="{{ raise_exception('no system role') }}"))
    with pytest.raises(DataError, match="no system role"):
        tokenizer.render_chat([{"role": "system", "content": "q"}])


def test_a_tokenizer_larger_than_its_model_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"the model in .* only 5"):
        Tokenizer.from_dir(write_tokenizer(tmp_path, vocab_size=5))


def test_padded_vocabularies_count_as_the_models(tmp_path):
    assert Tokenizer.from_dir(write_tokenizer(tmp_path, vocab_size=64)).vocab_size == 64


def test_a_missing_and_a_broken_file_are_named(tmp_path):
    with pytest.raises(DataError, match=r"no tokenizer\.json"):
        Tokenizer.from_dir(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="is no tokenizer"):
        Tokenizer.from_dir(tmp_path)


PLAIN = "{% for m in messages %}{{ m.content }}{% if not loop.last %}, {% endif %}{% endfor %}\n"
WITH_TOOLS = (
    "{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}\n"
)
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("place", ["listed", "beside"])
def test_a_model_s_own_template_for_tools_is_taken_where_there_are_tools_as_transformers_does(tmp_path, place):
    from transformers import PreTrainedTokenizerFast

    directory = write_tokenizer(tmp_path)
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    if place == "listed":
        named = {"default": PLAIN, "tool_use": WITH_TOOLS}
        settings["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    else:
        (directory / "chat_template.jinja").write_text(PLAIN)
        (directory / "additional_chat_templates").mkdir()
        (directory / "additional_chat_templates/tool_use.jinja").write_text(WITH_TOOLS)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, theirs = Tokenizer.from_dir(directory), PreTrainedTokenizerFast.from_pretrained(directory)
    chat = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    for tools, text in (((), "1, 2"), ((LOOK,), "[look]12")):
        assert ours.render_chat(chat, tools=tools, generation_prompt=False) == text
        assert theirs.apply_chat_template(chat, tools=list(tools) or None, tokenize=False) == text
    exported = side_files(directory, directory)
    assert ("chat_template.jinja" in exported) == (place == "beside")
    if place == "beside":
        assert exported["chat_template.jinja"] == (ours.chat_template or "").encode()


def test_a_template_in_a_file_of_its_own_is_read(tmp_path):
    directory = write_tokenizer(tmp_path)
    (directory / "chat_template.json").write_text(json.dumps({"chat_template": PLAIN}))
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    assert Tokenizer.from_dir(directory).chat_template == PLAIN


def test_the_digest_changes_with_the_template(directory, tmp_path):
    other = write_tokenizer(tmp_path)
    assert Tokenizer.from_dir(directory).digest == Tokenizer.from_dir(directory).digest
    assert Tokenizer.from_dir(directory).digest != Tokenizer.from_dir(other).digest
