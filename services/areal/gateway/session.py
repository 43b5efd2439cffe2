"""One session: its calls, its budget, and what a call that comes again means.

A call with the body of an earlier one is a retry, which joins the answer under way or is given the answer that was
made, or a new question, which is sampled with a seed of its own: never two generations for one question. Pure: no
clock, no task, no client.
"""

import json
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

import numpy as np
import xxhash

from areal.gateway.faults import CallRefusal, over
from areal.gateway.graph import MessageGraph
from areal.gateway.messages import Message, Tool, digest_of
from areal.gateway.templates.template import Template
from areal.values.generation import GenerationResult, Ids, Logprobs, as_ids
from areal.values.images import Image
from areal.workflow.branches import Node

# An answer's tokens as they come, with those who watch it. Pure: watchers are plain callbacks.


class Growing:
    """Ids and log-probabilities of one answer so far; append-only until it is begun again."""

    def __init__(self) -> None:
        self.ids = array("i")
        self.logprobs = array("f")
        self._watchers: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, ids: Ids, logprobs: Logprobs) -> None:
        """Tokens came."""
        self.ids.extend(ids.tolist())
        self.logprobs.extend(logprobs.tolist())
        self.changed()

    def complete(self, result: GenerationResult) -> None:
        """All tokens are known: those that were not streamed are added."""
        told = len(self.ids)
        self.ids.extend(result.output_ids[told:].tolist())
        self.logprobs.extend(result.logprobs[told:].tolist())

    def clear(self) -> None:
        """The answer is sampled again."""
        self.ids, self.logprobs = array("i"), array("f")

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` at every change."""
        self._watchers.append(watcher)

    def leave(self, watcher: Callable[[], None]) -> None:
        """Call it no more."""
        self._watchers.remove(watcher)

    def changed(self) -> None:
        """Tell the watchers."""
        for watcher in tuple(self._watchers):
            watcher()


_NO_CHAT = "no chat"  # instead of the tools' digest: no chat continues such an answer
_CUT = "cut"  # what is asked behind an answer that its budget has cut: that it goes on
_POSITIVE = (1 << 63) - 1


@dataclass(frozen=True)
class SessionRequest:
    """One request, whatever its dialect. `digest` is of its whole body, `choices` says how many answers it wants.

    Without messages it continues `ids`, or else `text`.
    """

    messages: tuple[Message, ...]
    digest: int
    tools: tuple[Tool, ...] = ()
    calls_tools: bool = True  # whether calls of tools are parsed
    choices: int = 1
    ids: tuple[int, ...] = ()
    text: str = ""
    stop_token_ids: tuple[int, ...] = ()
    follows: str | None = None  # session and number of an earlier call, whose messages and answer come before these
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    overridden: tuple[str, ...] = ()
    scored: bool = False  # log-probabilities of the prompt's tokens are wanted
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # of the chat template

    @property
    def images(self) -> tuple[Image, ...]:
        """All that its messages show, in order."""
        return tuple(image for message in self.messages for image in message.images)

    @property
    def continues(self) -> bool:
        """Whether the last message is the assistant's and begun: the answer goes on with it."""
        return bool(self.messages) and self.messages[-1].role == "assistant" and not self.messages[-1].tool_calls


@dataclass(frozen=True)
class SessionLimits:
    """Of one session, in tokens and calls."""

    max_new_tokens: int
    max_sample_tokens: int  # of all branches together, and so of the longest
    max_calls: int
    tool_answers: bool = True  # whether the policy is given what tools answered, or empty answers


class CallState(Enum):
    """Of one call."""

    RUNNING = auto()
    DONE = auto()
    FAILED = auto()  # the platform's fault: asked again it is sampled again


@dataclass(eq=False)
class SessionCall:
    """One generation, and the connections that wait for it."""

    number: int
    choice: int  # of its request
    question: SessionRequest
    parent: int | None
    given: Ids  # [tokens], ids new in this prompt
    prompt_ids: Ids  # [tokens], all of them
    max_new_tokens: int
    draw: int  # what its seed is made of: the same for a retry, another one for a new question
    asked: int  # number of the place and messages that it shares with its siblings
    request: int  # number of the first choice of its request
    state: CallState = CallState.RUNNING
    connections: int = 0
    delivered: bool = False
    answer: Message | None = None
    result: GenerationResult | None = None
    fault: CallRefusal | None = None
    stopped: str = ""  # the stop string that ended the answer
    unparsed: bool = False  # the answer holds what looks like a call of a tool and is none
    made: Growing = field(default_factory=Growing)  # its answer as it comes
    created: int = 0  # seconds since the epoch, of who began it; a retry is told the same

    @property
    def said(self) -> tuple[Message, ...]:
        """All messages up to its answer, as a client tells them next time: an answer that was begun is one with it."""
        assert self.answer is not None
        before, answer = self.question.messages, self.answer
        if not self.question.continues:
            return (*before, answer)
        begun = before[-1]
        thought = answer.reasoning if begun.reasoning is None else begun.reasoning
        return (*before[:-1], replace(answer, text=begun.text + answer.text, reasoning=thought))


class EpisodeCalls:
    """All calls of one episode."""

    def __init__(
        self,
        name: str,
        template: Template,
        limits: SessionLimits,
        *,
        first_system: bool = False,
        forked: Callable[[str], None] = lambda why: None,
    ) -> None:
        """`forked` is told why a call that has a history begins a sequence of its own."""
        self.name = name
        self._first_system = first_system
        self._forked = forked
        self.graph = MessageGraph()
        self._template = template
        self._limits = limits
        self._calls: list[SessionCall] = []
        self._numbers = 0
        self._by_digest: dict[tuple[int, int], list[SessionCall]] = {}  # by choice
        self._asked: dict[tuple[int | None, object], int] = {}
        self.over = ""  # why it ended; empty while it lives
        self.reward: float | None = None  # that the agent posted last
        self.withheld = 0  # answers of tools that the policy wasn't given

    def score(self, reward: float, answer: str | None) -> None:
        """The agent posts its reward; it may name the newest answer by its id. Raises Refused."""
        if self.over:
            raise over(self.over)
        newest = max((call.request for call in self._calls if call.state is CallState.DONE), default=None)
        if answer is not None and (newest is None or re.split("[-_]", answer)[-1] != str(newest)):
            raise CallRefusal(
                "all answers of an episode have one reward: leave interaction_id out, or name the newest answer",
                field="interaction_id",
            )
        self.reward = reward

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
        self.over = self.over or reason
        for call in self._calls:
            if call.state is CallState.RUNNING:
                call.made.changed()
        return self.graph.nodes

    def ask(self, question: SessionRequest, *, retry: bool) -> tuple[SessionCall, bool]:
        """The call that answers a request for one answer; see `choices`."""
        return self.choices([question], retry=retry)[0]

    def choices(self, questions: Sequence[SessionRequest], *, retry: bool) -> list[tuple[SessionCall, bool]]:
        """The calls that answer a request's questions, and whether each has to be generated. Raises Refused.

        `retry` says that the client itself calls this a retry. The connection counts as alive until `gone` or
        `delivered`.
        """
        if self.over:
            raise over(self.over)
        asked: list[tuple[SessionCall, bool]] = []
        try:
            for question in map(self._with_history, questions):
                for choice in range(question.choices):
                    asked.append(self._choice(question, choice, asked[0][0] if asked else None, retry=retry))
        except CallRefusal:
            for call, begin in asked:
                self.gone(call)
                if begin:  # none of them is generated
                    self._calls.remove(call)
                    self._by_digest[call.question.digest, call.choice].remove(call)
            raise
        return asked

    def measure(self, question: SessionRequest) -> int:
        """Tokens that the prompt of a request would have. Raises Refused."""
        return len(self._place(question)[2])

    def _with_history(self, question: SessionRequest) -> SessionRequest:
        if not self._limits.tool_answers:
            told = [message for message in question.messages if message.role == "tool" and message.text]
            self.withheld = max(self.withheld, len(told))
            shown = (replace(one, text="", images=()) if one.role == "tool" else one for one in question.messages)
            question = replace(question, messages=tuple(shown))
        if question.follows is None:
            return question
        earlier = next((call for call in self._calls if f"{self.name}_{call.number}" == question.follows), None)
        if earlier is None or earlier.answer is None:
            raise CallRefusal("the previous response is none of this session", field="previous_response_id")
        history = earlier.said
        if question.messages[0].role == "system" and history[0].role == "system":
            history = history[1:]  # instructions replace those of before
            return replace(question, messages=(question.messages[0], *history, *question.messages[1:]))
        return replace(question, messages=(*history, *question.messages))

    def _choice(
        self, question: SessionRequest, choice: int, first: SessionCall | None, *, retry: bool
    ) -> tuple[SessionCall, bool]:
        earlier = self._by_digest.setdefault((question.digest, choice), [])
        last = earlier[-1] if earlier else None
        again = last is not None and (
            retry
            or (last.state is CallState.RUNNING and not last.connections)
            or (last.state is CallState.DONE and not last.delivered and not last.connections)
            or last.state is CallState.FAILED
        )
        if last is not None and again:
            last.connections += 1
            if last.state is CallState.FAILED:
                last.state, last.fault = CallState.RUNNING, None
                last.made.clear()
                return last, True
            return last, False
        call = self._begin(question, choice, sibling=len(earlier), first=first)
        earlier.append(call)
        self._calls.append(call)
        call.connections = 1
        return call, True

    def answered(self, call: SessionCall, result: GenerationResult, answer: Message) -> None:
        """The call's answer was sampled, and reads like this."""
        call.state, call.result, call.answer = CallState.DONE, result, answer
        node = Node(call.number, call.parent, call.given, result, call.asked, call.request)
        tools = digest_of(call.question.tools) if call.question.messages else _NO_CHAT
        self.graph.add(node, call.said, tools)
        call.made.complete(result)
        call.made.changed()

    def failed(self, call: SessionCall, fault: CallRefusal) -> None:
        """The call's generation failed, by no fault of the agent."""
        call.state, call.fault = CallState.FAILED, fault
        call.made.changed()

    def delivered(self, call: SessionCall) -> None:
        """A client has the whole answer."""
        call.connections -= 1
        call.delivered = True

    def gone(self, call: SessionCall) -> None:
        """A client left before it had the answer."""
        call.connections -= 1

    def _begin(self, question: SessionRequest, choice: int, *, sibling: int, first: SessionCall | None) -> SessionCall:
        if self.calls >= self._limits.max_calls:
            raise CallRefusal(
                f"this episode has made its {self._limits.max_calls} calls (rollout.agent.maxCalls); it can still be "
                "scored",
                code="too_many_calls",
            )
        parent, given, prompt, what = self._place(question)
        if parent is None and first is None and (why := self._fork_of(question)):
            self._forked(why)
        asked = self._asked.setdefault((parent, what), len(self._asked))
        number = self._numbers
        self._numbers += 1
        return SessionCall(
            number=number,
            choice=choice,
            request=number if first is None else first.number,
            question=question,
            parent=parent,
            given=given,
            prompt_ids=prompt,
            max_new_tokens=self._room(len(prompt), parent, question.max_tokens),
            draw=_draw(prompt, question.seed, f"{sibling}.{choice}" if choice else str(sibling)),
            asked=asked,
        )

    def _place(self, question: SessionRequest) -> tuple[int | None, Ids, Ids, object]:
        """Parent, ids that are new, all ids, and what is asked behind the parent. Raises Refused."""
        if not question.messages:
            prompt = as_ids(question.ids) if question.ids else self._template.text(question.text)
            behind = self.graph.place_ids(prompt)
            given = prompt if behind is None else prompt[len(self.graph.ids(behind)) :]
            return behind, given, prompt, given.tobytes()
        tools = digest_of(question.tools)
        kwargs = question.kwargs
        what = tools + (json.dumps(dict(kwargs), sort_keys=True) if kwargs else "")
        if question.continues:
            if (cut := self.graph.cut(question.messages, tools)) is not None:
                return cut, as_ids([]), self.graph.ids(cut), (_CUT, what)
            place = self.graph.place(question.messages[:-1], tools, any_system=self._first_system)
            begun = self._template.begun(question.messages[-1], question.tools, kwargs)
            if place.parent is None or begun is None:
                given = self._template.first(question.messages, question.tools, kwargs, continues=True)
                return None, given, given, (question.messages, what)
        else:
            place, begun = self.graph.place(question.messages, tools, any_system=self._first_system), as_ids([])
        if place.parent is None:
            given = self._template.first(place.new, question.tools, kwargs)
            return None, given, given, (place.new, what)
        before = self.graph.ids(place.parent.node.number)
        try:
            given = self._template.bridge(
                place.new,
                last_id=int(before[-1]),
                tools=question.tools,
                answer=place.parent.messages[-1],
                kwargs=kwargs,
            )
        except CallRefusal:
            if question.messages[0] not in place.new:
                raise  # else no system message can stand there
            given = self._template.first(question.messages, question.tools, kwargs, continues=question.continues)
            return None, given, given, (question.messages, what)
        given = as_ids(np.concatenate([given, begun]))
        said = place.new if not question.continues else (*place.new, question.messages[-1])
        return place.parent.node.number, given, as_ids(np.concatenate([before, given])), (said, what)

    def _fork_of(self, question: SessionRequest) -> str:
        """Why a request with a history continues nothing: its system message, its tools or another message is new."""
        messages, tools = question.messages[: -1 if question.continues else None], digest_of(question.tools)
        if not self.graph.nodes or not any(message.role == "assistant" for message in messages):
            return ""
        if self.graph.place(messages, tools, any_system=True).parent is not None:
            return "system"
        return "history" if self.graph.place(messages, None, any_system=True).parent is None else "tools"

    def _room(self, prompt: int, parent: int | None, wanted: int | None) -> int:
        """Tokens that the answer may have. Raises Refused when there is no room."""
        limits = self._limits
        under_way = sum(
            len(call.prompt_ids) + call.max_new_tokens for call in self._calls if call.state is CallState.RUNNING
        )
        room = limits.max_sample_tokens - self.graph.tokens(without=parent) - under_way - prompt
        if room <= 0:
            raise CallRefusal(
                f"a prompt of {prompt} tokens leaves no room for an answer: all calls of an episode have "
                f"{limits.max_sample_tokens} tokens together (rollout.maxSampleTokens)",
                code="context_length_exceeded",
                field="messages",
            )
        return min(room, limits.max_new_tokens, wanted or limits.max_new_tokens)


def _draw(prompt: Ids, seed: int | None, sibling: str) -> int:
    """What the seed of a call is made of: independent of how calls interleave."""
    digest = xxhash.xxh3_64(prompt.tobytes())
    digest.update(f"{seed}/{sibling}".encode())
    return digest.intdigest() & _POSITIVE
