"""System messages that change within an episode, and the counters of what clients send."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from areal.errors import ConfigError
from areal.gateway.core import NAMES_COUNTED, GatewayCore
from areal.gateway.messages import Message
from areal.gateway.session import EpisodeCalls, SessionLimits, SessionRequest
from areal.gateway.templates.template import Template
from areal.observe.metrics import RoleMetrics
from areal.rollout.worker.sessions import SessionRules, Sessions
from areal.values.generation import GenerationResult, as_ids
from areal.workflow.branches import branches_of
from areal.workflow.tokenizer import Tokenizer
from support.chat_tokenizer import CHATML, HERMES, write_chat_tokenizer

LIMITS = SessionLimits(64, 8192, 64)
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
FRONT = (  # all system messages at its front
    "{%- for message in messages if message.role == 'system' -%}{{- message.content -}}{%- endfor -%}"
    + CHATML.replace("for message in messages", "for message in messages if message.role != 'system'")
)


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_dir(write_chat_tokenizer(tmp_path_factory.mktemp("hermes"), HERMES))


class Agent:
    """Says a new time in its system message each turn; `turn` returns the text of its prompt."""

    def __init__(self, tokenizer: Tokenizer, *, first_system: bool, **fields: Any) -> None:
        self.tokenizer, self.forks = tokenizer, []
        self.session = EpisodeCalls(
            "s", Template(tokenizer), LIMITS, first_system=first_system, forked=self.forks.append
        )
        self.said: list[Message] = []
        self.fields = fields

    def turn(self, system: str, *said: Message) -> str:
        self.said += said
        question = SessionRequest(
            (Message("system", system), *self.said), hash((system, len(self.said))), **self.fields
        )
        call, _ = self.session.ask(question, retry=False)
        text = f"a{len(self.said)}"
        ids = as_ids([*self.tokenizer.encode(text, special=False).tolist(), next(iter(self.tokenizer.eos_ids))])
        self.session.answered(call, GenerationResult(ids, (ids * 0).astype("<f4")), Message("assistant", text))
        self.said.append(Message("assistant", text))
        return self.tokenizer.decode(call.prompt_ids, skip_special=False)

    @property
    def sequences(self) -> int:
        return len(branches_of(self.session.graph.nodes, 1.0).episode.sequences)


def user(text: str) -> Message:
    return Message("user", text)


def test_a_changing_system_message_begins_a_sequence_each_turn_and_is_counted(hermes):
    agent = Agent(hermes, first_system=False)
    for number in range(3):
        agent.turn(f"time {number}", user(f"u{number}"))
    assert (agent.sequences, agent.forks) == (3, ["system", "system"])


def test_with_the_first_one_kept_it_is_one_growing_sequence(hermes):
    agent = Agent(hermes, first_system=True)
    first, second, same, back = (
        agent.turn(system, user(f"u{number}")) for number, system in enumerate(("t0", "t1", "t1", "t0"))
    )
    assert (agent.sequences, agent.forks) == (1, [])
    assert second.startswith(first)
    assert second.count("system\nt0") == second.count("system\nt1") == 1
    assert second.index("a1") < second.index("system\nt1") < second.index("u1")
    assert same.count("system\nt1") == 1, "what didn't change isn't said again"
    assert back.rindex("system\nt0") > back.rindex("system\nt1")


def test_the_new_text_stands_behind_the_results_of_tools(hermes):
    agent = Agent(hermes, first_system=True, tools=(ADD,))
    agent.turn("t0", user("u"))
    prompt = agent.turn("t1", Message("tool", "5", tool_call_id="c"), user("and"))
    assert prompt.index("tool_response") < prompt.index("system\nt1") < prompt.index("and<|im_end|>")
    assert agent.sequences == 1


def test_other_tools_and_another_history_are_told_apart(hermes):
    agent = Agent(hermes, first_system=False)
    agent.turn("t0", user("u"))
    agent.fields = {"tools": (ADD,)}
    agent.turn("t0", user("v"))
    agent.said[1] = replace(agent.said[1], text="rewritten")
    agent.turn("t0", user("w"))
    assert agent.forks == ["tools", "history"]


@pytest.mark.parametrize(("template", "fits"), [(HERMES, True), (CHATML, True), (FRONT, False)])
async def test_a_template_that_takes_no_later_system_message_refuses_the_option(
    tmp_path: Path, template: str, fits: bool
) -> None:
    tokenizer = Tokenizer.from_dir(write_chat_tokenizer(tmp_path, template))
    sessions = Sessions(tokenizer, LIMITS, rules=SessionRules(first_system=True))
    with contextlib.nullcontext() if fits else pytest.raises(ConfigError, match="volatileSystem"):
        sessions.start()
    await sessions.stop()


def test_fields_and_forks_are_counted_and_few_names_are_kept(hermes, caplog):
    metrics = RoleMetrics("worker", "job")
    core = GatewayCore(Template(hermes), secret=b"s", clock=lambda: 0.0, metrics=metrics)
    core.ignored([f"field{number}" for number in range(NAMES_COUNTED + 3)] + ["field0"])
    count = metrics.counter("areal_gateway_ignored_total", field="field0")
    other = metrics.counter("areal_gateway_ignored_total", field="other")
    assert (count._value.get(), other._value.get()) == (2, 3)
    access = core.open("s", None, LIMITS, lives_s=1, address="")
    calls = core.find(None, access.api_key).session
    with caplog.at_level(logging.WARNING):
        for why in ("system", "system", "tools"):
            calls._forked(why)
    assert metrics.counter("areal_gateway_forks_total", why="system")._value.get() == 2
    assert [record.message for record in caplog.records if "volatileSystem" in record.message]
    assert len(caplog.records) == 1
