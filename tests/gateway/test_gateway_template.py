"""T2, T3, T4, T13: first prompts, bridges and their proof, and content that stays data."""

from __future__ import annotations

import pytest
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import Message
from areal.gateway.templates.template import Template
from areal.workflow.tokenizer import Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_tokenizer import ADDED, CHATML, CONTROL, FORGETFUL, LLAMA, REWRITING, UNCLOSED, write_chat_tokenizer

ROLES = st.sampled_from(["user", "system"])
HOSTILE = st.lists(
    st.one_of(
        st.sampled_from([*CONTROL, *ADDED, "<|im_", "end|>", "<", "|>"]),
        st.text("ab1 \n<|>the\ue000\ue001", max_size=4),
    ),
    max_size=6,
).map("".join)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizers")
    templates = {
        "chatml": CHATML,
        "llama": LLAMA,
        "forgetful": FORGETFUL,
        "rewriting": REWRITING,
        "unclosed": UNCLOSED,
        "none": None,
    }
    return {
        name: Tokenizer.from_dir(write_chat_tokenizer(root / name, template)) for name, template in templates.items()
    }


@pytest.fixture(scope="module")
def templates(tokenizers):
    return {name: Template(tokenizer) for name, tokenizer in tokenizers.items()}


@pytest.fixture(params=["chatml", "llama", "none"])
def name(request):
    return request.param


def control_ids(tokenizer: Tokenizer, ids) -> list[str]:
    return [text for token in ids.tolist() if (text := tokenizer.text_of(token)) in (*CONTROL, *ADDED)]


@given(st.lists(st.tuples(ROLES, st.text("ab1 \n=,.", max_size=9)), min_size=1, max_size=4))
def test_t2_a_first_prompt_is_the_templates_own(tokenizers, templates, chat):
    template = templates["chatml"]
    messages = [{"role": role, "content": text} for role, text in chat]
    expected = tokenizers["chatml"].encode(tokenizers["chatml"].render_chat(messages), special=False)
    assert template.first([Message(role, text) for role, text in chat]).tolist() == expected.tolist()


@given(st.text("ab12 the\n", min_size=1, max_size=8), st.text("ab12 the\n", min_size=1, max_size=8))
def test_t3_prompt_answer_and_bridge_are_the_whole_conversation(tokenizers, templates, answer, said):
    for name in ("chatml", "llama"):
        tokenizer, template = tokenizers[name], templates[name]
        end = next(iter(tokenizer.eos_ids))
        answer = answer.strip() or "x"  # a template may trim an answer; what was sampled stays as it is
        first = tokenizer.decode(template.first([Message("user", "q")]), skip_special=False)
        bridge = template.bridge([Message("user", said)], last_id=end).tolist()
        whole = template.first([Message("user", "q"), Message("assistant", answer), Message("user", said)]).tolist()
        assert whole[-len(bridge) - 1 :] == [end, *bridge]
        assert first + answer + tokenizer.decode([end, *bridge], skip_special=False) == tokenizer.decode(
            whole, skip_special=False
        )


def test_t3_templates_that_can_be_continued_are_proved(templates, name):
    assert templates[name].unproved == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("rewriting", "isn't closed by a token"),
        ("forgetful", "leaves out what an assistant said"),
        ("unclosed", "isn't closed by a token"),
    ],
)
def test_t3_a_template_that_cannot_be_continued_is_refused(templates, name, why):
    template = templates[name]
    assert why in template.unproved
    assert len(template.first([Message("user", "q")]))
    with pytest.raises(CallRefusal) as caught:
        template.bridge([Message("user", "more")], last_id=None)
    assert (caught.value.status, caught.value.code) == (400, "unproved_template")


def test_t4_a_cut_answer_is_closed_and_a_whole_one_is_not_closed_twice(tokenizers, templates, name):
    tokenizer, template = tokenizers[name], templates[name]
    end = next(iter(tokenizer.eos_ids))
    whole = template.bridge([Message("user", "more")], last_id=end).tolist()
    cut = template.bridge([Message("user", "more")], last_id=int(tokenizer.encode("a")[0])).tolist()
    assert cut == [end, *whole]


@settings(max_examples=50)
@given(HOSTILE, HOSTILE)
def test_t13_control_strings_in_content_never_become_control_ids(tokenizers, templates, first, second):
    for name in ("chatml", "llama", "none"):
        tokenizer, template = tokenizers[name], templates[name]
        plain = template.first([Message("user", "a"), Message("user", "b")])
        hostile = template.first([Message("user", first), Message("user", second)])
        assert control_ids(tokenizer, hostile) == control_ids(tokenizer, plain)
        text = tokenizer.decode(hostile, skip_special=False)
        shown = [{"role": "user", "content": first}, {"role": "user", "content": second}]
        if name != "none":
            assert text == tokenizer.render_chat(shown), "and no character is lost"
        bridges = [template.bridge([Message("tool", said)], last_id=None) for said in (first, "a")]
        assert control_ids(tokenizer, bridges[0]) == control_ids(tokenizer, bridges[1])


def test_t13_what_the_template_says_next_to_data_is_control(tokenizers, templates):
    ids = templates["chatml"].first([Message("user", "<|im_end|")])
    assert control_ids(tokenizers["chatml"], ids) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
