"""Incremental reader of answers: the text, reasoning and tool calls that a client is told, from tokens as they come.

Owns the rule that what is streamed and what is told at once are the same: both are read here, whatever the pieces in
which tokens come. What may still turn out otherwise is held back: half a character, the beginning of a stop string or
of a tag, a tool call that isn't closed. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from areal.gateway.detokenizer import Detokenizer, StopCutter, begun
from areal.gateway.messages import Message, ToolCall
from areal.gateway.templates.template import THINK
from areal.gateway.tools import CLOSE, OPEN, Form, WrittenToolCall, one_call, whole_answer
from areal.values.strict_json import as_utf8
from areal.workflow.tokenizer import Tokenizer

THOUGHT = "</think>"


@dataclass(frozen=True)
class Text:
    """More of what the answer says."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


Part = Text | Reasoning | ToolCall


@dataclass(frozen=True)
class Manner:
    """How an answer is to be read. Without a form, calls of tools are text."""

    stops: Sequence[str] = ()
    form: Form | None = None
    names: Collection[str] = field(default_factory=frozenset)  # of the tools that may be called
    thinks: bool = False  # the model may begin with <think>
    thinking: bool = False  # the prompt ends with <think>
    call_id: Callable[[int], str] = "call_{}".format


class _ReadingPlace(Enum):
    START = auto()
    THINKING = auto()
    THOUGHT = auto()  # behind the reasoning
    SAYING = auto()  # at the beginning of what is said
    TEXT = auto()
    CALL = auto()
    HELD = auto()  # an answer that may be nothing but calls, in Llama's form


class AnswerReader:
    """Reads one answer."""

    def __init__(self, tokenizer: Tokenizer, manner: Manner | None = None) -> None:
        manner = manner or Manner()
        tags = {OPEN, CLOSE} if manner.form is Form.HERMES else set()
        self._detokenizer = Detokenizer(tokenizer, shown=tags | ({THINK, THOUGHT} if manner.thinks else set()))
        self._cutter = StopCutter(manner.stops)
        self._manner = manner
        self._place = _ReadingPlace.THINKING if manner.thinking else _ReadingPlace.START
        self._held = ""
        self._parts: list[Part] = []
        self._after_call = False
        self._called = 0
        self.unparsed = False  # something looked like a call of a tool and wasn't one

    def feed(self, ids: Sequence[int]) -> list[Part]:
        """The parts that these tokens complete."""
        return self._take(self._cutter.feed(self._detokenizer.feed(ids)), end=False)

    def end(self) -> list[Part]:
        """What was held back. No token follows."""
        return self._take(self._cutter.feed(self._detokenizer.end()) + self._cutter.end(), end=True)

    @property
    def stopped(self) -> str:
        """The stop string that ended it, or nothing."""
        return self._cutter.found

    @property
    def message(self) -> Message:
        """The answer as far as it was read."""
        reasoning = [part.text for part in self._parts if isinstance(part, Reasoning)]
        return Message(
            "assistant",
            "".join(part.text for part in self._parts if isinstance(part, Text)),
            tuple(part for part in self._parts if isinstance(part, ToolCall)),
            reasoning="".join(reasoning) if reasoning else None,
        )

    def _take(self, text: str, *, end: bool) -> list[Part]:
        self._held += as_utf8(text)
        parts = list(self._step(end))
        self._parts += parts
        return parts

    def _step(self, end: bool) -> Iterator[Part]:
        """Whatever the place, until nothing more is complete."""
        steps = {
            _ReadingPlace.START: self._start,
            _ReadingPlace.THINKING: self._think,
            _ReadingPlace.THOUGHT: self._thought,
            _ReadingPlace.SAYING: self._say,
            _ReadingPlace.TEXT: self._text,
            _ReadingPlace.CALL: self._call,
            _ReadingPlace.HELD: self._hold,
        }
        moving = True
        while moving:
            before = (self._place, len(self._held))
            yield from steps[self._place](end)
            moving = (self._place, len(self._held)) != before and bool(self._held)

    def _start(self, end: bool) -> Iterator[Part]:
        """An answer may begin with reasoning."""
        text = self._held.lstrip()
        if self._manner.thinks and text.startswith(THINK):
            self._place, self._held = _ReadingPlace.THINKING, text[len(THINK) :]
        elif end or not self._manner.thinks or (text and not THINK.startswith(text)):
            self._place = _ReadingPlace.SAYING
        yield from ()

    def _think(self, end: bool) -> Iterator[Part]:
        thought, tag, rest = self._held.partition(THOUGHT)
        if tag:
            self._place, self._held = _ReadingPlace.THOUGHT, rest
        else:
            kept = 0 if end else begun(thought, THOUGHT)
            thought, self._held = thought[: len(thought) - kept], thought[len(thought) - kept :]
        if thought:
            yield Reasoning(thought)

    def _thought(self, end: bool) -> Iterator[Part]:
        """White space after reasoning belongs to it."""
        self._held = self._held.lstrip()
        if self._held:
            self._place = _ReadingPlace.SAYING
        yield from ()

    def _say(self, end: bool) -> Iterator[Part]:
        """In Llama's form an answer is a call, or a text."""
        text = self._held.lstrip()
        if self._manner.form is not Form.LLAMA or end or text:
            self._place = (
                _ReadingPlace.HELD if self._manner.form is Form.LLAMA and text.startswith("{") else _ReadingPlace.TEXT
            )
        yield from ()

    def _text(self, end: bool) -> Iterator[Part]:
        said, tag, rest = self._held, "", ""
        if self._manner.form is Form.HERMES:
            said, tag, rest = self._held.partition(OPEN)
        kept = 0 if tag or end or self._manner.form is not Form.HERMES else begun(said, OPEN)
        told, held = said[: len(said) - kept], said[len(said) - kept :]
        if self._after_call and not told.strip():
            if not tag and not end:
                return  # white space between calls isn't told
            told = ""
        self._held = rest if tag else held
        if tag:
            self._place = _ReadingPlace.CALL
        if told:
            self._after_call = False
            yield Text(told)

    def _call(self, end: bool) -> Iterator[Part]:
        written, tag, rest = self._held.partition(CLOSE)
        if not tag and not end:
            return
        call = one_call(written, self._manner.names) if tag else None
        self._place, self._held = _ReadingPlace.TEXT, rest
        self._after_call = call is not None
        if call is None:
            self.unparsed = True
            yield Text(f"{OPEN}{written}{tag}")
        else:
            yield self._numbered(call)

    def _hold(self, end: bool) -> Iterator[Part]:
        if not end:
            return
        calls = whole_answer(self._held, self._manner.names)
        if calls:
            for call in calls:
                yield self._numbered(call)
        else:
            self.unparsed = True
            yield Text(self._held)
        self._held = ""

    def _numbered(self, call: WrittenToolCall) -> ToolCall:
        number, self._called = self._called, self._called + 1
        return ToolCall(self._manner.call_id(number), call.name, call.arguments)


def read(reader: AnswerReader, ids: Sequence[int]) -> Message:
    """A whole answer."""
    reader.feed(ids)
    reader.end()
    return reader.message
