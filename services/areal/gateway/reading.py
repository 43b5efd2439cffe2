"""Incremental reader of answers: the text, reasoning and tool calls that a client is told, from tokens as they come.

Owns the rule that what is streamed and what is told at once are the same: both are read here, whatever the pieces in
which tokens come. What may still turn out otherwise is held back: half a character, the beginning of a stop string or
of a tag, a tool call that isn't closed. Pure.
"""

import codecs
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from areal.gateway.messages import Message, ToolCall
from areal.gateway.templates.forms import (
    THINKING,
    ArgumentKind,
    ClosingFinder,
    Grammar,
    Thinking,
    WrittenToolCall,
    calls_in,
)
from areal.values.strict_json import as_utf8
from areal.workflow.tokenizer import Tokenizer


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
    form: Grammar | None = None
    names: Collection[str] = field(default_factory=frozenset)  # of the tools that may be called; may map to schemas
    thinks: bool = False  # the model may begin with its reasoning
    thinking: bool = False  # the prompt ends within it
    tags: Thinking = THINKING[0]
    call_id: Callable[[int], str] = "call_{}".format


class _ReadingPlace(Enum):
    START = auto()
    THINKING = auto()
    THOUGHT = auto()  # behind the reasoning
    SAYING = auto()  # at the beginning of what is said
    TEXT = auto()
    CALL = auto()
    HELD = auto()  # an answer that may be nothing but calls


class AnswerReader:
    """Reads one answer."""

    def __init__(self, tokenizer: Tokenizer, manner: Manner | None = None) -> None:
        manner = manner or Manner()
        grammar = manner.form
        self._grammar = grammar if grammar is not None and grammar.opening else None
        self._bare = grammar if grammar is not None and not grammar.opening else None
        tags = manner.tags if manner.thinks else None
        self._thinking = tags.opening if tags is not None else ""
        self._thought = manner.tags.closing
        self._dropped = tags.dropped if tags is not None else ()
        again = (self._thinking,) if tags is not None and tags.anywhere else ()
        self._marks = tuple(
            mark for mark in (self._grammar.opening if self._grammar else "", *self._dropped, *again) if mark
        )
        written = grammar.shown if grammar is not None else ""
        told = " ".join((written, self._thinking, self._thought if manner.thinks else "", *self._dropped))
        shown = {text for text in tokenizer.added_texts if text in told}
        self._detokenizer = Detokenizer(tokenizer, shown=shown)
        self._cutter = StopCutter(manner.stops)
        self._manner = manner
        self._place = _ReadingPlace.THINKING if manner.thinking else _ReadingPlace.START
        self._held = ""
        self._finder: ClosingFinder | None = None  # in a block of calls
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
            _ReadingPlace.THOUGHT: self._behind_thought,
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
        text, tag = self._held.lstrip(), self._thinking
        if tag and text.startswith(tag):
            self._place, self._held = _ReadingPlace.THINKING, text[len(tag) :]
        elif end or not tag or (text and not tag.startswith(text)):
            self._place = _ReadingPlace.SAYING
        yield from ()

    def _think(self, end: bool) -> Iterator[Part]:
        thought, tag, rest = self._held.partition(self._thought)
        if tag:
            self._place, self._held = _ReadingPlace.THOUGHT, rest
        else:
            kept = 0 if end else begun(thought, self._thought)
            thought, self._held = thought[: len(thought) - kept], thought[len(thought) - kept :]
        if thought:
            yield Reasoning(thought)

    def _behind_thought(self, end: bool) -> Iterator[Part]:
        """White space after reasoning belongs to it."""
        self._held = self._held.lstrip()
        if self._held:
            self._place = _ReadingPlace.SAYING
        yield from ()

    def _say(self, end: bool) -> Iterator[Part]:
        """Without an opening of calls an answer is nothing but calls, or a text."""
        text = self._held.lstrip()
        if self._bare is None or end or text:
            opens = "[" if self._bare is not None and self._bare.arguments is ArgumentKind.PYTHON else ("{", "[")
            held = self._bare is not None and text.startswith(opens)
            self._place = _ReadingPlace.HELD if held else _ReadingPlace.TEXT
        yield from ()

    def _text(self, end: bool) -> Iterator[Part]:
        said, mark, rest, kept = self._to_mark(end)
        if self._after_call and not said.strip():
            if not mark and not end:
                return  # white space between calls isn't told
            said = ""
        self._held = rest if mark else kept
        if mark == self._thinking and mark:
            self._place = _ReadingPlace.THINKING
        elif mark and mark not in self._dropped:
            self._place, self._finder = _ReadingPlace.CALL, None
        if said:
            self._after_call = False
            yield Text(said)

    def _to_mark(self, end: bool) -> tuple[str, str, str, str]:
        """Text before the next mark, the mark, text behind it; without one, text that may be the beginning of one.

        Of marks that begin alike the longest counts, and is waited for.
        """
        places = [(place, -len(mark), mark) for mark in self._marks if (place := self._held.find(mark)) >= 0]
        if places:
            place, _, mark = min(places)
            ahead = self._held[place:]
            if end or not any(other.startswith(ahead) and len(other) > len(ahead) for other in self._marks):
                return self._held[:place], mark, self._held[place + len(mark) :], ""
            return self._held[:place], "", "", ahead
        kept = 0 if end else max((begun(self._held, mark) for mark in self._marks), default=0)
        cut = len(self._held) - kept
        return self._held[:cut], "", "", self._held[cut:]

    def _call(self, end: bool) -> Iterator[Part]:
        grammar = self._grammar
        assert grammar is not None
        self._finder = self._finder or ClosingFinder(grammar)
        if (place := self._finder.find(self._held, end=end)) < 0 and not end:
            return
        closed = place >= 0
        written, rest = (self._held[:place], self._held[place + len(grammar.closing) :]) if closed else (self._held, "")
        whole = closed or not grammar.closing or grammar.may_end
        calls = calls_in(written, grammar, self._manner.names) if whole else []
        self._place, self._held = _ReadingPlace.TEXT, rest
        self._after_call = bool(calls)
        if not calls:
            self.unparsed = True
            yield Text(f"{grammar.opening}{written}{grammar.closing if closed else ''}")
        for call in calls:
            yield self._numbered(call)

    def _hold(self, end: bool) -> Iterator[Part]:
        if not end or self._bare is None:
            return
        calls = calls_in(self._held, self._bare, self._manner.names)
        for call in calls:
            yield self._numbered(call)
        if not calls:
            self.unparsed = True
            yield Text(self._held)
        self._held = ""

    def _numbered(self, call: WrittenToolCall) -> ToolCall:
        number, self._called = self._called, self._called + 1
        return ToolCall(call.id or self._manner.call_id(number), call.name, call.arguments)


def read(reader: AnswerReader, ids: Sequence[int]) -> Message:
    """A whole answer."""
    reader.feed(ids)
    reader.end()
    return reader.message


# ---- Incremental detokenizer: whole characters of growing ids, cut at the first stop string. Pure


class Detokenizer:
    """Text of growing ids without special tokens, but for those that are `shown`."""

    def __init__(self, tokenizer: Tokenizer, shown: Collection[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids
        if shown:
            self._hidden = frozenset(token for token in self._hidden if tokenizer.text_of(token) not in shown)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._ids: list[int] = []
        self._told = ""
        self._begun = False

    def feed(self, ids: Iterable[int]) -> str:
        """What these ids add; half a character is held back."""
        if self._tokenizer.has_pieces:
            return self._utf8.decode(b"".join([self._piece(token) for token in ids if token not in self._hidden]))
        self._ids.extend(ids)
        text = self._tokenizer.decode(self._ids)
        if not text.startswith(self._told) or text.endswith("\ufffd"):
            return ""
        return self._tell(text)

    def end(self) -> str:
        """What was held back."""
        if self._tokenizer.has_pieces:
            return self._utf8.decode(b"", final=True)
        text = self._tokenizer.decode(self._ids)
        return self._tell(text) if text.startswith(self._told) else ""

    def _tell(self, text: str) -> str:
        fresh, self._told = text[len(self._told) :], text
        return fresh

    def _piece(self, token: int) -> bytes:
        piece = self._tokenizer.piece(token)
        if self._begun:
            return piece
        self._begun = True
        dropped = piece.startswith(b" ") and not self._tokenizer.decode([token]).startswith(" ")
        return piece[1:] if dropped else piece  # some decoders drop the space before a text


class StopCutter:
    """Cuts a growing text at the first stop string, which isn't told."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = ""  # the stop string that cut it

    def feed(self, text: str) -> str:
        """What can be told for certain."""
        if not self._stops or not text:
            return text
        if self.found:
            return ""
        self._held += text
        return self._cut(len(self._held) - max(begun(self._held, stop) for stop in self._stops))

    def end(self) -> str:
        """What was held back."""
        return self._cut(len(self._held))

    def _cut(self, certain: int) -> str:
        """The held text up to the first stop string, as far as none may have begun before `certain`."""
        places = [(place, stop) for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if places and min(places)[0] <= certain:
            certain, self.found = min(places)
            told, self._held = self._held[:certain], ""
        else:
            told, self._held = self._held[:certain], self._held[certain:]
        return told


def begun(text: str, marker: str) -> int:
    """Characters at the end of `text` that may be the beginning of `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((length for length in range(longest, 0, -1) if marker.startswith(text[-length:])), 0)
