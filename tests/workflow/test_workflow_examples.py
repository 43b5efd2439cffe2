"""Rows become sequences whose trained tokens are the assistant's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from areal.admit.models import read_model, refuse_teacher
from areal.errors import DataError
from areal.spec.job import JobSpec
from areal.workflow.examples import Example, example, margin_of, other_opening, pair
from areal.workflow.tokenizer import Tokenizer
from support import tiny_job

TEMPLATE = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% if m.role == 'assistant' %}.{% endif %}"
    "{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


@pytest.fixture
def plain(tmp_path: Path) -> Tokenizer:
    tiny_job.make_model(tmp_path / "model")
    return Tokenizer.from_dir(tmp_path / "model")


@pytest.fixture
def chatty(tmp_path: Path) -> Tokenizer:
    """One token a character; `.` ends an answer."""
    from tokenizers import Tokenizer as Fast
    from tokenizers import models, pre_tokenizers

    letters = {character: place for place, character in enumerate(map(chr, range(10, 127)))}
    fast = Fast(models.WordLevel(letters, unk_token="?"))
    fast.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    folder = tmp_path / "chat"
    folder.mkdir()
    fast.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"vocab_size": 200, "eos_token_id": letters["."]}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return Tokenizer.from_dir(folder)


def trained(found: Example, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(found.ids[found.mask].tolist(), skip_special=False).replace(" ", "")


def test_a_prompt_and_an_answer_train_the_answer_and_its_end(plain: Tokenizer) -> None:
    found = example({"prompt": "12=", "answer": "21"}, plain)
    assert found.ids.tolist() == [1, 2, 10, 2, 1, 11]
    assert found.mask.tolist() == [False] * 3 + [True] * 3
    assert found.cut(4).trained == 1


def test_of_a_chat_every_turn_of_the_assistant_is_trained_and_nothing_between(chatty: Tokenizer) -> None:
    chat = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": "no"},
    ]
    found = example({"messages": chat}, chatty)
    assert trained(found, chatty) == "yes.no."
    assert len(found.ids) == len("<u>hi\n<a>yes.\n<u>more\n<a>no.\n")


def test_a_pair_shares_its_prompt_and_trains_the_last_turn_of_each_side(chatty: Tokenizer) -> None:
    history = [{"role": "user", "content": "hi"}]
    sides = {side: [{"role": "assistant", "content": side}] for side in ("chosen", "rejected")}
    by_messages = pair({"prompt": history, **sides}, chatty)
    by_text = pair({"prompt": "hi", "chosen": "chosen", "rejected": "rejected"}, chatty)
    assert [trained(one, chatty) for one in by_messages] == ["chosen.", "rejected."]
    for one, other in zip(by_messages, by_text, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.mask.tolist() == other.mask.tolist()


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "1="}, "answer"),
        ({"answer": "1"}, "prompt"),
        ({"messages": [{"role": "user", "content": "1"}]}, "assistant"),
    ],
)
def test_a_row_without_an_answer_is_refused_by_name(plain: Tokenizer, row: dict[str, object], says: str) -> None:
    with pytest.raises(DataError, match=says):
        example(row, plain)


def test_a_pair_without_a_side_is_refused(plain: Tokenizer) -> None:
    with pytest.raises(DataError, match="'rejected'"):
        pair({"prompt": "1=", "chosen": "1"}, plain)


def test_a_margin_is_a_number_of_the_row_and_nothing_else():
    assert margin_of({"strength": 2}, "strength") == 2.0
    assert margin_of({"strength": 2}, None) == 0.0
    for value in (None, True, "2", float("nan")):
        with pytest.raises(DataError, match="'strength' is no finite number"):
            margin_of({"strength": value}, "strength")


COMMON = {"model": {"path": "m"}, "dataset": {"train": {"jsonl": "t"}}}
POLICY = {"name": "OnPolicyDistillation", "batchSize": 4, "maxSteps": 4, "teacher": {"path": "t"}}


def taught(tokens: int) -> JobSpec:
    block = {"name": "Distillation", "batchSize": 4, "maxTokens": tokens, "teacher": {"path": "t"}}
    return JobSpec.model_validate({**COMMON, "training": block})


def test_a_teacher_has_the_students_tokens_and_room_for_its_rows(plain: Tokenizer, tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    tiny_job.make_model(teacher, vocabulary=20)  # more rows of its embedding than tokens
    student, spec = tmp_path / "student", taught(64)
    tiny_job.make_model(student, vocabulary=24)
    refuse_teacher(spec, plain, read_model(student), read_model(teacher))
    with pytest.raises(DataError, match="reads 64 tokens, and maxTokens is 65"):
        refuse_teacher(taught(65), plain, read_model(student), read_model(teacher))
    on_policy = JobSpec.model_validate({**COMMON, "algorithm": POLICY, "rollout": {"maxSampleTokens": 64}})
    with pytest.raises(DataError, match="has 20 tokens with padding, the student 24"):
        refuse_teacher(on_policy, plain, read_model(student), read_model(teacher))
    refuse_teacher(on_policy, plain, read_model(teacher), read_model(student))
    text = (teacher / "tokenizer.json").read_text()
    (teacher / "tokenizer.json").write_text(text.replace('"=": 10', '"+": 10').replace('"=":10', '"+":10'))
    with pytest.raises(DataError, match=r"another tokenizer than the student: id 10 is '\+' there, is '=' here"):
        refuse_teacher(spec, plain, read_model(student), read_model(teacher))


BLOCKS = {  # the same text in each; only the tags and the white space around them differ
    "in a line": "<a>{% generation %}{{ m.content }}.\n{% endgeneration %}",
    "lines of their own": "<a>\n    {%- generation %}\n{{ m.content }}.\n\n    {% endgeneration %}\n",
    "minus signs": "<a>\n  {%- generation -%}\n  {{ m.content }}.{{ '\\n' }}\n  {%- endgeneration -%}\n  ",
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_generation_block_is_trained_as_far_as_the_token_that_ends_the_turn(name: str, chatty: Tokenizer) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}\n{{ '\\n' }}{% else %}" + BLOCKS[name]
        + "{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    )  # fmt: skip
    chat = [{"role": role, "content": said} for role, said in zip(("user", "assistant") * 2, "abcd", strict=True)]
    tokenizer = chatty.with_template(template)
    found = example({"messages": chat}, tokenizer)
    assert tokenizer.decode(found.ids.tolist(), skip_special=False).count("{") == 0
    assert trained(found, tokenizer) == "b.d."
    assert trained(example({"messages": [*chat[:3], {**chat[3], "weight": 0}]}, tokenizer), tokenizer) == "b."


OPENED = "{% if add_generation_prompt %}<a>{% endif %}"


def test_a_block_may_leave_out_part_of_a_turn_and_one_that_is_not_each_turns_is_none(chatty: Tokenizer) -> None:
    part = "{% for m in messages %}<{{ m.role[0] }}>#{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    tokenizer = chatty.with_template(
        f"{part}{{% endgeneration %}}.{{% else %}}{{{{ m.content }}}}{{% endif %}}{{% endfor %}}"
    )
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert trained(example({"messages": chat}, tokenizer), tokenizer) == "b"
    last = (
        "{% for m in messages %}<{{ m.role[0] }}>{% if loop.last %}{% generation %}{{ m.content }}.{% endgeneration %}"
    )
    tokenizer = chatty.with_template(f"{last}{{% else %}}{{{{ m.content }}}}.{{% endif %}}{{% endfor %}}{OPENED}")
    assert trained(example({"messages": [*chat, *chat]}, tokenizer), tokenizer) == "b.b.", "by the texts' differences"


THINKS = (
    "{% for m in messages %}<{{ m.role[0] }}>{% if m.role == 'assistant' %}[t][/t]{{ m.content }}.{% else %}"
    "{{ m.content }}{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}<a>[t]\n{% endif %}"
)


def test_a_template_that_opens_an_answer_otherwise_than_it_writes_one_trains_it_behind_what_both_have(
    chatty: Tokenizer,
) -> None:
    tokenizer = chatty.with_template(THINKS)
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert trained(example({"messages": chat}, tokenizer), tokenizer) == "[/t]b."
    assert other_opening(tokenizer) == ("\n", "[/t]")
    assert other_opening(chatty) is None
