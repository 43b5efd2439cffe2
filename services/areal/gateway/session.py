"""One session: its calls, its budget, and what a call that comes again means.

A call with the body of an earlier one is a retry, which joins the answer under way or is given the answer that was
made, or a new question, which is sampled with a seed of its own: never two generations for one question. Pure: no
clock, no task, no client.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import xxhash

from areal.gateway.faults import Refused, over
from areal.gateway.graph import Graph
from areal.gateway.messages import Message
from areal.gateway.templates.template import Template
from areal.workflow.branches import Node
from areal.workflow.generation import GenerationResult, Ids, as_ids

_POSITIVE = (1 << 63) - 1


@dataclass(frozen=True)
class Question:
    """One request, whatever its dialect. `digest` is of its whole body."""

    messages: tuple[Message, ...]
    digest: int
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    overridden: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Of one session, in tokens and calls."""

    max_new_tokens: int
    max_sample_tokens: int  # of all branches together, and so of the longest
    max_calls: int


class State(Enum):
    """Of one call."""

    RUNNING = auto()
    DONE = auto()
    FAILED = auto()  # the platform's fault: asked again it is sampled again


@dataclass(eq=False)
class Call:
    """One generation, and the connections that wait for it."""

    number: int
    question: Question
    parent: int | None
    given: Ids  # [tokens], ids new in this prompt
    prompt_ids: Ids  # [tokens], all of them
    max_new_tokens: int
    draw: int  # what its seed is made of: the same for a retry, another one for a new question
    asked: int  # number of the place and messages that it shares with its siblings
    state: State = State.RUNNING
    connections: int = 0
    delivered: bool = False
    answer: Message | None = None
    result: GenerationResult | None = None
    fault: Refused | None = None


class Session:
    """All calls of one episode."""

    def __init__(self, name: str, template: Template, limits: Limits) -> None:
        self.name = name
        self.graph = Graph()
        self._template = template
        self._limits = limits
        self._calls: list[Call] = []
        self._by_digest: dict[int, list[Call]] = {}
        self._asked: dict[tuple[int | None, tuple[Message, ...]], int] = {}
        self._over = ""

    @property
    def over(self) -> str:
        """Why it ended; empty while it lives."""
        return self._over

    @property
    def max_tokens(self) -> int:
        """Of all its calls together."""
        return self._limits.max_sample_tokens

    @property
    def calls(self) -> int:
        """Generations begun."""
        return len(self._calls)

    def close(self, reason: str) -> list[Node]:
        """End it: later calls are told why. Returns what was sampled, for the episode."""
        self._over = self._over or reason
        return self.graph.nodes

    def ask(self, question: Question, *, retry: bool) -> tuple[Call, bool]:
        """The call that answers a request, and whether it has to be generated. Raises Refused.

        `retry` says that the client itself calls this a retry. The connection counts as alive until `gone` or
        `delivered`.
        """
        if self._over:
            raise over(self._over)
        earlier = self._by_digest.setdefault(question.digest, [])
        last = earlier[-1] if earlier else None
        again = last is not None and (
            retry
            or (last.state is State.RUNNING and not last.connections)
            or (last.state is State.DONE and not last.delivered and not last.connections)
            or last.state is State.FAILED
        )
        if last is not None and again:
            last.connections += 1
            if last.state is State.FAILED:
                last.state, last.fault = State.RUNNING, None
                return last, True
            return last, False
        call = self._begin(question, sibling=len(earlier))
        earlier.append(call)
        self._calls.append(call)
        call.connections = 1
        return call, True

    def answered(self, call: Call, result: GenerationResult, answer: Message) -> None:
        """The call's answer was sampled, and reads like this."""
        call.state, call.result, call.answer = State.DONE, result, answer
        node = Node(call.number, call.parent, call.given, result, call.asked)
        self.graph.add(node, (*call.question.messages, answer), "")

    def failed(self, call: Call, fault: Refused) -> None:
        """The call's generation failed, by no fault of the agent."""
        call.state, call.fault = State.FAILED, fault

    def delivered(self, call: Call) -> None:
        """A client has the whole answer."""
        call.connections -= 1
        call.delivered = True

    def gone(self, call: Call) -> None:
        """A client left before it had the answer."""
        call.connections -= 1

    def _begin(self, question: Question, sibling: int) -> Call:
        if self.calls >= self._limits.max_calls:
            raise Refused(
                f"this episode has made its {self._limits.max_calls} calls (rollout.agent.maxCalls); it can still be "
                "scored",
                code="too_many_calls",
            )
        place = self.graph.place(question.messages, "")
        if place.parent is None:
            before = as_ids([])
            given = self._template.first(place.new)
        else:
            before = self.graph.ids(place.parent.node.number)
            given = self._template.bridge(place.new, last_id=int(before[-1]))
        parent = place.parent.node.number if place.parent else None
        prompt = as_ids(np.concatenate([before, given]))
        asked = self._asked.setdefault((parent, place.new), len(self._asked))
        return Call(
            number=len(self._calls),
            question=question,
            parent=parent,
            given=given,
            prompt_ids=prompt,
            max_new_tokens=self._room(len(prompt), parent, question.max_tokens),
            draw=_draw(prompt, question.seed, sibling),
            asked=asked,
        )

    def _room(self, prompt: int, parent: int | None, wanted: int | None) -> int:
        """Tokens that the answer may have. Raises Refused when there is no room."""
        limits = self._limits
        under_way = sum(
            len(call.prompt_ids) + call.max_new_tokens for call in self._calls if call.state is State.RUNNING
        )
        room = limits.max_sample_tokens - self.graph.tokens(without=parent) - under_way - prompt
        if room <= 0:
            raise Refused(
                f"a prompt of {prompt} tokens leaves no room for an answer: all calls of an episode have "
                f"{limits.max_sample_tokens} tokens together (rollout.maxSampleTokens)",
                code="context_length_exceeded",
                field="messages",
            )
        return min(room, limits.max_new_tokens, wanted or limits.max_new_tokens)


def _draw(prompt: Ids, seed: int | None, sibling: int) -> int:
    """What the seed of a call is made of: independent of how calls interleave."""
    digest = xxhash.xxh3_64(prompt.tobytes())
    digest.update(f"{seed}/{sibling}".encode())
    return digest.intdigest() & _POSITIVE
