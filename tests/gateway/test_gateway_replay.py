"""T1, T5, T8, T9: histories that clients send back changed lose, alter and repeat no token.

`AREAL_REPLAYED_HISTORIES` is the number of cases: `make chaos` tries ten thousand.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from areal.gateway.admission import AdmissionRules
from areal.gateway.dialects import chat
from areal.gateway.messages import Message, ToolCall
from areal.gateway.session import EpisodeCalls, SessionCall, SessionLimits
from areal.gateway.templates.template import Template
from areal.values.generation import GenerationResult, TokenSpan, as_ids
from areal.workflow.branches import branches_of, kept
from areal.workflow.tokenizer import Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_tokenizer import HERMES, write_chat_tokenizer

CASES = int(os.environ.get("AREAL_REPLAYED_HISTORIES", "200"))
LIMITS = SessionLimits(max_new_tokens=8, max_sample_tokens=1 << 24, max_calls=64)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("add", "look")
]
Body = dict[str, Any]

WORDS = st.sampled_from(["a", "the 12", "<|im_end|>", "q\n\nq", "é\ue000"])
ECHOES = st.sets(st.sampled_from(["space", "no reasoning", "keys", "arguments", "extra", "null", "no id"]))
HARM = st.sampled_from(["edit", "drop", "double", "swap", "summarise", "tools"])
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["go on", "go on", "go on", "harm", "retry", "ask again", "lost"]),
        st.integers(0, 7),  # which answer it goes on from
        WORDS,
        ECHOES,
        HARM,
        st.sampled_from(["text", "call", "thinks", "cut"]),
        st.lists(st.integers(0, 200), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=9,
)


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Template, Tokenizer]:
    tokenizer = Tokenizer.from_dir(write_chat_tokenizer(tmp_path_factory.mktemp("hermes"), HERMES))
    return Template(tokenizer), tokenizer


@dataclass
class Client:
    """One client over one session, and what it should see: messages by what they say, apart from the gateway's own."""

    template: Template
    end: int
    session: EpisodeCalls = field(init=False)
    told: list[tuple[int, list[Body], str]] = field(default_factory=list)  # call, history with its answer, tools
    last: tuple[Body, SessionCall] | None = None

    def __post_init__(self) -> None:
        self.session = EpisodeCalls("s", self.template, LIMITS)

    def send(self, body: Body, *, retry: bool = False) -> tuple[SessionCall, bool]:
        question = chat.parse(json.dumps(body).encode(), AdmissionRules()).question
        call, begin = self.session.ask(question, retry=retry)
        if begin:
            parent = self.expected(body)
            assert call.parent == parent
            before = [] if parent is None else self.session.graph.ids(parent).tolist()
            assert call.prompt_ids.tolist() == [*before, *call.given.tolist()], "what was fed and sampled is kept"
            if parent is None:
                whole = self.template.first(question.messages, question.tools)
                assert call.given.tolist() == whole.tolist()
        self.last = (body, call)
        return call, begin

    def expected(self, body: Body) -> int | None:
        """Behind the longest known history that this one begins with, the newest of such, if no answer follows it."""
        meant = [meaning(message) for message in body["messages"]]
        tools = json.dumps(body["tools"])
        known = [
            (len(history), number)
            for number, history, named in self.told
            if named == tools and [meaning(message) for message in history] == meant[: len(history)]
        ]
        length, number = max(known, default=(len(meant), -1))
        rest = meant[length:]
        return number if rest and not any(message[0] == "assistant" for message in rest) else None

    def answer(self, body: Body, call: SessionCall, how: str, ids: list[int]) -> None:
        ids = ids if how == "cut" else [*ids, self.end]
        made = Message(
            "assistant",
            "" if how == "call" else f"said {call.number}",
            (ToolCall(f"c{call.number}", "add", '{"x": 1, "y": [2]}'),) if how == "call" else (),
            reasoning="because" if how == "thinks" else None,
        )
        span = TokenSpan(0, len(ids), "2.f1", "server")
        logprobs = np.full(len(ids), -0.5, "<f4")
        self.session.answered(call, GenerationResult(as_ids(ids), logprobs, (span,)), made)
        self.told.append((call.number, [*body["messages"], chat.message_of(made)], json.dumps(body["tools"])))


def meaning(message: Body) -> tuple[object, ...]:
    """What a message says, by the letter of T5; reasoning that some clients drop is the same in all of these."""
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]
    text = (message.get("content") or "").strip()
    return message["role"], text, message.get("tool_call_id", ""), json.dumps(calls, sort_keys=True)


def echoed(message: Body, ways: set[str]) -> Body:
    """An answer as some client sends it back."""
    if message["role"] != "assistant":
        return message
    back = {name: value for name, value in message.items() if name != "refusal" or "extra" in ways}
    if "space" in ways:
        back["content"] = f" {back['content'] or ''}\n"
    if "null" in ways and not (back["content"] or "").strip():
        back["content"] = None if back["content"] is not None else ""
    if "no reasoning" in ways:
        back.pop("reasoning_content", None)
    calls = []
    for call in back.get("tool_calls", []):
        function = dict(call["function"])
        if "arguments" in ways:
            function["arguments"] = '{"y":[2],"x":1}'
        shown = {"id": call["id"], "type": "function", "function": function}
        if "no id" in ways:
            shown["id"] = f"other{len(calls)}"
        calls.append(dict(reversed(shown.items())) if "keys" in ways else shown)
    return back | ({"tool_calls": calls} if calls else {})


def harmed(body: Body, how: str) -> Body:
    """A history that says something else."""
    messages = [dict(message) for message in body["messages"]]
    middle = len(messages) // 2
    if how == "edit":
        messages[middle]["content"] = f"{messages[middle].get('content') or ''}!"
    elif how == "drop" and len(messages) > 1:
        del messages[middle]
    elif how == "double":
        messages.insert(middle, messages[middle])
    elif how == "swap" and len(messages) > 2:
        messages[0], messages[2] = messages[2], messages[0]
    elif how == "summarise":
        messages = [{"role": "system", "content": "so far"}, messages[-1]]
    tools = TOOLS[:1] if how == "tools" and len(body["tools"]) == 2 else body["tools"]
    return {"messages": messages, "tools": tools}


@settings(max_examples=CASES)
@given(ACTS)
def test_histories_sent_back_lose_change_and_repeat_no_token(hermes, acts):
    template, tokenizer = hermes
    client = Client(template, next(iter(tokenizer.eos_ids)))
    for act, which, word, ways, harm, how, ids in acts:
        body: Body = {"messages": [{"role": "user", "content": word}], "tools": TOOLS}
        if act == "retry" and client.last is not None:
            again, begin = client.send(client.last[0], retry=True)
            assert not begin
            client.session.delivered(again)
            continue
        if act == "ask again" and client.last is not None:
            body, before = client.last[0], client.last[1]
            call, begin = client.send(body)
            assert begin
            assert call.draw != before.draw, "another seed for another question"
        else:
            if client.told:
                _, history, tools = client.told[which % len(client.told)]
                asked = history[-1].get("tool_calls")
                more = (
                    {"role": "tool", "content": word, "tool_call_id": asked[0]["id"]} if asked else body["messages"][0]
                )
                body = {"messages": [*(echoed(said, ways) for said in history), more], "tools": json.loads(tools)}
            if act == "harm":
                body = harmed(body, harm)
            body["seed"] = len(client.told)  # none of them is by chance one asked before
            call, begin = client.send(body)
            assert begin
        if act == "lost":  # the client's connection breaks, and it asks again without saying so
            client.session.gone(call)
            joined, begin = client.send(body)
            assert (joined, begin) == (call, False)
        client.answer(body, call, how, ids)
        if act == "lost":
            client.session.gone(call)
            assert client.send(body) == (call, False), "an answer that didn't arrive is given again"
        client.session.delivered(call)
    nodes = client.session.close("the end")
    if not nodes:
        return
    branches = branches_of(nodes, 1.0)
    trained = Counter()
    for sequence in branches.episode.sequences:
        mask = sequence.loss_mask == 1
        trained.update(sequence.input_ids[mask].tolist())
        assert (sequence.versions[mask] == 2).all()
    adopted = kept(nodes)
    sampled = Counter(token for node in nodes if node.number in adopted for token in node.result.output_ids.tolist())
    assert trained == sampled, "each adopted token is trained once"
    assert branches.orphans == len(nodes) - len(adopted)
