"""The built-in workflows against an engine that answers from a list."""

from __future__ import annotations

import pytest
from areal.errors import DataError
from areal.rollout.worker.episode_run import sample_seed
from areal.workflow import MultiTurnWorkflow, RLVRWorkflow
from areal.workflow.rlvr import prompt_of
from areal.workflow.tokenizer import Tokenizer
from hypothesis import given
from hypothesis import strategies as st
from support.char_tokenizer import TEMPLATE, write_tokenizer
from support.listed_engine import Listed


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return Tokenizer.from_dir(write_tokenizer(tmp_path_factory.mktemp("plain")))


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return Tokenizer.from_dir(write_tokenizer(tmp_path_factory.mktemp("chat"), template=TEMPLATE))


async def test_an_answer_that_a_stop_string_ended_gets_its_end_token_from_the_template(chat):
    """Its finish reason is `stop`, and its last id is no end token."""
    engine = Listed(chat, [("1", "stop string"), ("12", "stop")], "12")

    class Brief(MultiTurnWorkflow):
        feedback = "bab"

    (sequence,) = (await Brief(max_turns=5).arun_episode(engine, {"prompt": "21="})).sequences
    text = chat.decode(sequence.input_ids.tolist(), skip_special=False)
    assert text == "<user>21=<assistant>1[EOS]<user>bab<assistant>12[EOS]"


async def test_rlvr_scores_one_answer(plain):
    engine = Listed(plain, [("12", "stop")], "12")
    episode = await RLVRWorkflow().arun_episode(engine, {"prompt": "21="})
    (sequence,) = episode.sequences
    assert sequence.reward == 1.0
    assert plain.decode(sequence.input_ids, skip_special=False) == "21=12[EOS]"
    assert sequence.loss_mask.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("which", ["plain", "chat"])
async def test_every_turn_continues_the_exact_ids_so_far(which, request):
    tokenizer = request.getfixturevalue(which)

    class Brief(MultiTurnWorkflow):
        feedback = "bab"

    engine = Listed(tokenizer, [("1", "stop"), ("2", "length"), ("12", "stop")], "12")
    episode = await Brief(max_turns=5).arun_episode(engine, {"prompt": "21="})
    (sequence,) = episode.sequences
    ids = sequence.input_ids.tolist()
    for made in engine.inputs:
        assert ids[: len(made)] == made
    assert sequence.reward == pytest.approx(0.9**2)
    texts = {
        "plain": "21=1[EOS]\nbab\n2\nbab\n12[EOS]",
        "chat": "<user>21=<assistant>1[EOS]<user>bab<assistant>2[EOS]<user>bab<assistant>12[EOS]",
    }
    assert tokenizer.decode(ids, skip_special=False) == texts[which]
    sampled = [
        tokenizer.decode([token], skip_special=False) for token, m in zip(ids, sequence.loss_mask, strict=True) if m
    ]
    assert "".join(sampled) == "1[EOS]212[EOS]"
    assert sorted(set(sequence.versions.tolist())) == [-1, 1, 2, 3]


async def test_the_turns_are_bounded(plain):
    engine = Listed(plain, [("1", "stop")] * 9, "12")
    episode = await MultiTurnWorkflow(max_turns=2).arun_episode(engine, {"prompt": "21="})
    assert len(engine.inputs) == 2
    assert episode.reward == 0.0


async def test_an_empty_answer_ends_the_turns(plain):
    engine = Listed(plain, [("1", "stop"), ("", "length")], "12")
    episode = await MultiTurnWorkflow(max_turns=9).arun_episode(engine, {"prompt": "21="})
    assert len(engine.inputs) == 2
    assert episode.truncated


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"prompt": "12"}, "<user>12<assistant>"),
        ({"question": "12"}, "<user>12<assistant>"),
        ({"messages": [{"role": "system", "content": "q"}], "prompt": "7"}, "<system>q<assistant>"),
    ],
)
def test_a_prompt_is_the_first_known_column(chat, row, text):
    prompt = prompt_of(row, chat)
    assert prompt.text == text
    assert chat.decode(prompt.ids, skip_special=False) == text


def test_the_chat_template_can_be_switched_off(chat):
    assert prompt_of({"prompt": "12"}, chat, chat_template=False).text == "12"


@pytest.mark.parametrize("row", [{"answer": "12"}, {}, {"prompt": 12}])
def test_a_row_without_a_prompt_is_refused(plain, row):
    with pytest.raises(DataError):
        prompt_of(row, plain)


names = st.tuples(st.integers(0, 2**62), st.integers(0, 2**40), st.integers(0, 64), st.integers(0, 8))


@given(first=names, second=names)
def test_seeds_differ_with_every_part_of_a_samples_name(first, second):
    assert 0 <= sample_seed(*first) < 2**63
    assert (sample_seed(*first) == sample_seed(*second)) == (first == second)
