"""End tokens: one set of all that names one, and what is told where they differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from areal.admit.models import ends_told, read_model, refuse_ends
from areal.errors import DataError
from areal.spec.model_families import file_end_ids
from areal.workflow.tokenizer import Tokenizer
from support.tiny_job import make_model
from tokenizers import AddedToken
from tokenizers import Tokenizer as Fast

CHAT = "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"


@pytest.fixture
def model(tmp_path) -> Path:
    make_model(tmp_path / "model", vocabulary=32)
    return tmp_path / "model"


def write(model: Path, *, config: object = 11, generation: object = None, chat: str | None = None) -> Tokenizer:
    table = json.loads((model / "config.json").read_text()) | {"eos_token_id": config}
    (model / "config.json").write_text(json.dumps(table))
    if generation is not None:
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    fast = Fast.from_file(str(model / "tokenizer.json"))
    fast.add_special_tokens([AddedToken("<|im_end|>", special=True), AddedToken("<|other|>", special=True)])
    fast.save(str(model / "tokenizer.json"))
    if chat is not None:
        (model / "chat_template.jinja").write_text(chat)
    return Tokenizer.from_dir(model)


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        (({"eos_token_id": 3}, {}), {3}),
        (({"eos_token_id": [3, 4]}, {"eos_token_id": 5}), {3, 4, 5}),
        (({"eos_token_id": None, "text_config": {"eos_token_id": 7}}, {"eos_token_id": [7, 8]}), {7, 8}),
        (({}, {}), set()),
        (({"eos_token_id": "3"}, {"eos_token_id": True}), set()),
    ],
)
def test_both_configurations_and_a_wrappers_text_part_name_ends(files, ends):
    assert file_end_ids(*files) == ends


def test_the_set_has_what_files_tokenizer_and_template_name(model):
    (model / "tokenizer_config.json").write_text('{"eos_token": "<|other|>"}')
    tokenizer = write(model, config=[3], generation=4, chat=CHAT)
    by_text = {text: number for number, text in tokenizer.vocabulary.items()}
    assert tokenizer.eos_ids == {3, 4, by_text["<|other|>"], by_text["<|im_end|>"]}
    assert tokenizer.with_template("{{ messages[0]['content'] }}").eos_ids == {3, 4, by_text["<|other|>"]}


def test_another_end_of_the_template_is_told(model):
    assert ends_told(write(model, chat=CHAT)) == (
        "answers end by the chat template's '<|im_end|>', the model's files name '<eos>': both end"
    )


@pytest.mark.parametrize("chat", [None, "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"])
def test_a_template_without_an_end_says_nothing(model, chat):
    tokenizer = write(model, chat=chat)
    assert ends_told(tokenizer) == ""
    assert tokenizer.eos_ids == {11}


def test_ends_that_agree_say_nothing(model):
    write(model)
    number = Tokenizer.from_dir(model)._fast.token_to_id("<|im_end|>")
    assert ends_told(write(model, config=[11, number], chat=CHAT)) == ""


def test_an_end_outside_the_vocabulary_and_none_at_all_are_refused(model):
    tokenizer = write(model, config=[11, 99])
    assert tokenizer.eos_ids == {11}
    with pytest.raises(DataError, match="eos_token_id 99 is outside its vocabulary of 32"):
        refuse_ends(tokenizer, read_model(model))
    with pytest.raises(DataError, match="names a token that ends an answer"):
        refuse_ends(write(model, config=None), read_model(model))


def test_an_id_of_a_padded_vocabulary_has_no_text(model):
    tokenizer = write(model)
    assert tokenizer.vocab_size == 32
    assert tokenizer.decode([31], skip_special=False) == ""
    assert tokenizer.piece(31) == b""
