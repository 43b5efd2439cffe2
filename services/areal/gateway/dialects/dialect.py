"""Interface of a dialect: a pure mapping from requests to questions, and from answers to bodies and events."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from areal.gateway.admission import AdmissionRules
from areal.gateway.faults import CallRefusal
from areal.gateway.reading import Part
from areal.gateway.session import SessionCall, SessionRequest


@dataclass(frozen=True)
class DialectRequest:
    """A request, read. `fields` are those of its body, `ignored` names those of no effect.

    `more` are further questions that the same answer answers: a completion of several prompts.
    """

    question: SessionRequest
    fields: Mapping[str, Any]
    stream: bool = False
    ignored: Sequence[str] = ()
    more: Sequence[SessionRequest] = ()
    named: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # see `ToolList`


@dataclass(frozen=True)
class DialectReply:
    """What answers a request: one call for each choice. For `named` see `ToolList`."""

    session: str
    calls: tuple[SessionCall, ...]
    fields: Mapping[str, Any]
    piece_of: Callable[[int], bytes]
    decode: Callable[[Sequence[int]], str]
    named: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The name that the client asked for; it is recorded, never routed on."""
        return str(self.fields.get("model") or "policy")

    @property
    def created(self) -> int:
        """When the request was first asked, in seconds since the epoch."""
        return self.calls[0].created

    def text_of(self, token: int) -> str:
        """The text of one token; bytes that are half a character are told as `\\xe2`, as OpenAI's API does."""
        return self.piece_of(token).decode(errors="backslashreplace")

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts; choices of one prompt share it."""
        return sum(len(call.prompt_ids) for call in self.calls if call.choice == 0)

    @property
    def answer_tokens(self) -> int:
        """Of all choices."""
        return sum(len(call.made) for call in self.calls)


@dataclass(frozen=True)
class Delta:
    """What came since the last one: parts that are complete, and the tokens that they took."""

    parts: Sequence[Part]
    ids: Sequence[int]
    logprobs: Sequence[float]


class Events(Protocol):
    """The events of one streamed reply, in the order in which its methods are called."""

    def begin(self) -> Iterator[bytes]: ...

    def delta(self, index: int, delta: Delta) -> Iterator[bytes]: ...

    def finish(self, index: int) -> Iterator[bytes]:
        """Choice `index` is whole."""

    def end(self) -> Iterator[bytes]: ...

    def fault(self, error: CallRefusal) -> Iterator[bytes]:
        """The stream can't go on."""


class Dialect(Protocol):
    """One API."""

    def parse(self, body: bytes, rules: AdmissionRules) -> DialectRequest:
        """The question of a request. Raises Refused."""

    def whole(self, reply: DialectReply) -> dict[str, Any]:
        """The body that answers by calls that are done."""

    def events(self, reply: DialectReply) -> Events:
        """The events that answer by calls under way."""

    def error(self, error: CallRefusal) -> dict[str, Any]:
        """The body of a refusal."""


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises Refused."""
    try:
        fields = orjson.loads(body)
        orjson.dumps(fields)  # what is too deep to be written is too deep
    except (orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
        raise CallRefusal(f"the body is not JSON that can be read: {error}") from None
    if not isinstance(fields, dict):
        raise CallRefusal("the body is no JSON object")
    return fields
