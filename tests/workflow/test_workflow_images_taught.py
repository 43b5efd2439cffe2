"""Answers and pairs on rows with images, in the shapes of public datasets: tokens as transformers', answers counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from areal.errors import DataError
from areal.image_shape import ImageShape
from areal.values.images import Image
from areal.workflow.examples import Example, example, pair
from areal.workflow.tokenizer import Tokenizer
from support.chat_tokenizer import write_chat_tokenizer
from support.tiny_vision import drawing
from support.vision_tokenizer import CONTROL, PARTS, write_vision_tokenizer
from transformers import AutoTokenizer

ONE, TWO = drawing(1), drawing(2, 56, 28)
ASKED, SAID, WORSE = "What is # here?", "A square.", "No idea"
END = "<|im_end|>"
PART = {"type": "image"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_tokenizer(tmp_path_factory.mktemp("taught"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_dir(folder)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def assistant(words: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [text(words)]}


ANSWERS = {  # row, the chat as transformers reads it, its images, the answers that are trained
    "TRL: messages of parts and a column": (
        {"messages": [user(PART, text(ASKED)), assistant(SAID)], "images": [ONE.uri]},
        [user(PART, text(ASKED)), assistant(SAID)], [ONE], [SAID],
    ),
    "TRL: prompt and completion": (
        {"prompt": [user(PART, PART, text(ASKED))], "completion": [assistant(SAID)], "images": [ONE.uri, TWO.uri]},
        [user(PART, PART, text(ASKED)), assistant(SAID)], [ONE, TWO], [SAID],
    ),
    "LLaMA-Factory: marks in messages": (
        {"messages": [
            {"role": "user", "content": f"<image>{ASKED}"}, {"role": "assistant", "content": SAID},
            {"role": "user", "content": "And <image>?"}, {"role": "assistant", "content": "The same."},
        ], "images": [ONE.uri, TWO.uri]},
        [user(PART, text(ASKED)), assistant(SAID), user(text("And "), PART, text("?")), assistant("The same.")],
        [ONE, TWO], [SAID, "The same."],
    ),
    "LLaVA: turns of a person and a model": (
        {"id": "7", "image": ONE.uri, "conversations": [
            {"from": "human", "value": f"<image>\n{ASKED}"}, {"from": "gpt", "value": SAID},
        ]},
        [user(PART, text(f"\n{ASKED}")), assistant(SAID)], [ONE], [SAID],
    ),
    "columns of a question and an answer": (
        {"question": ASKED, "answer": SAID, "image": {"bytes": ONE.data, "path": None}},
        [user(PART, text(ASKED)), assistant(SAID)], [ONE], [SAID],
    ),
    "OpenAI's fine-tuning of images": (
        {"messages": [
            user(text(ASKED), {"type": "image_url", "image_url": {"url": ONE.uri}}),
            {"role": "assistant", "content": SAID},
        ]},
        [user(text(ASKED), PART), assistant(SAID)], [ONE], [SAID],
    ),
}  # fmt: skip


def as_transformers(folder: Path, chat: list[dict[str, Any]], images: list[Image], shape: ImageShape) -> list[int]:
    """The chat's ids, each placeholder as often as its image takes."""
    ids = AutoTokenizer.from_pretrained(folder).apply_chat_template(chat, tokenize=True, return_dict=False)
    rest = iter(images)
    return [one for token in ids for one in [token] * (shape.tokens(next(rest)) if token == shape.token else 1)]


def answers_in(tokenizer: Tokenizer, found: Example) -> list[str]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], found.mask, [False]]).astype(int)))
    pieces = zip(edges[::2], edges[1::2], strict=True)
    return [tokenizer.decode(found.ids[start:end], skip_special=False) for start, end in pieces]


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_s_row_has_transformers_tokens_and_its_answers_are_counted(folder, tokenizer, name):
    row, chat, images, said = ANSWERS[name]
    found = example(row, tokenizer)
    assert found.images == tuple(images)
    assert found.ids.tolist() == as_transformers(folder, chat, images, tokenizer.image_shape)
    assert answers_in(tokenizer, found) == [words + END for words in said]


PAIRS = {
    "TRL: sides of parts": {
        "prompt": [user(PART, text(ASKED))], "chosen": [assistant(SAID)], "rejected": [assistant(WORSE)],
        "images": [ONE.uri],
    },
    "TRL: the prompt in both sides": {
        "chosen": [user(PART, text(ASKED)), assistant(SAID)], "rejected": [user(PART, text(ASKED)), assistant(WORSE)],
        "images": [ONE.uri],
    },
    "RLAIF-V: texts and a column": {"question": ASKED, "chosen": SAID, "rejected": WORSE, "image": ONE.uri},
    "LLaMA-Factory: turns of ShareGPT": {
        "conversations": [{"from": "human", "value": f"<image>{ASKED}"}],
        "chosen": {"from": "gpt", "value": SAID}, "rejected": {"from": "gpt", "value": WORSE}, "images": [ONE.uri],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_both_sides_of_a_pair_see_the_image(folder, tokenizer, name):
    for found, said in zip(pair(PAIRS[name], tokenizer), (SAID, WORSE), strict=True):
        chat = [user(PART, text(ASKED)), assistant(said)]
        assert found.images == (ONE,)
        assert found.ids.tolist() == as_transformers(folder, chat, [ONE], tokenizer.image_shape)
        assert answers_in(tokenizer, found) == [said + END]


def test_a_row_that_is_too_long_is_cut_before_an_image_that_does_not_fit(tokenizer):
    row, _, images, _ = ANSWERS["LLaMA-Factory: marks in messages"]
    found, shape = example(row, tokenizer), tokenizer.image_shape
    first, second = shape.begins(found.ids, images)
    assert found.cut(len(found.ids), shape).ids.tolist() == found.ids.tolist()
    within = found.cut(second + 1, shape)
    assert (len(within.ids), within.images) == (second, (ONE,))
    behind = found.cut(second + shape.tokens(TWO), shape)
    assert (len(behind.ids), behind.images) == (second + shape.tokens(TWO), (ONE, TWO))
    none = found.cut(first + 1, shape)
    assert (len(none.ids), none.images) == (first, ())
    assert len(none.mask) == first
    for one in (within, behind, none):
        assert shape.begins(one.ids, one.images) == [first, second][: len(one.images)]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": [user(text(ASKED)), assistant(SAID)], "images": [ONE.uri, "nothing.png"]}, "nothing.png"),
        ({"messages": [user(text("<image>")), assistant(SAID)], "images": [ONE.uri, TWO.uri]}, "1 times <image> for 2"),
        ({"messages": [user(PART), assistant(SAID)]}, "a part is an image, and the row has none"),
        ({"messages": [user(text(ASKED)), {"role": "assistant", "content": [PART, text(SAID)]}], "images": [ONE.uri]},
         "an assistant"),
    ],
)  # fmt: skip
def test_images_that_are_not_those_of_the_row_are_named(tokenizer, row, words):
    with pytest.raises(DataError, match=words):
        example(row, tokenizer)


def test_a_model_of_texts_still_refuses_them(tmp_path):
    plain = Tokenizer.from_dir(write_chat_tokenizer(tmp_path, PARTS, CONTROL))
    with pytest.raises(DataError, match="this model reads text only"):
        example(ANSWERS["columns of a question and an answer"][0], plain)
    with pytest.raises(DataError, match="this model reads text only"):
        pair(PAIRS["RLAIF-V: texts and a column"], plain)
