"""OpenAI's completions dialect: `POST /v1/completions`, of a text or of ids. Pure mapping."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

from areal.gateway.admission import AdmissionRules, admit, overridden
from areal.gateway.dialects import chat
from areal.gateway.dialects.dialect import Delta, DialectReply, DialectRequest, read_object
from areal.gateway.dialects.inference import read_ids
from areal.gateway.faults import CallRefusal
from areal.gateway.reading import Text
from areal.gateway.session import SessionRequest

_LARGEST = 2**64 - 1


def parse(body: bytes, rules: AdmissionRules) -> DialectRequest:
    """See `Dialect.parse`. Several prompts are several questions."""
    fields = read_object(body)
    ignored = admit(fields, "completions", rules)
    scored = chat.flag(fields, "echo") and fields.get("logprobs") is not None
    if scored and not rules.prompt_logprobs:
        raise CallRefusal("echo with logprobs: engines of a job don't tell a prompt's log-probabilities", field="echo")
    if scored and chat.flag(fields, "stream"):
        raise CallRefusal("echo with logprobs is answered at once, not streamed", field="stream")
    nothing = chat.flag(fields, "echo") and fields.get("max_tokens") == 0  # the prompt alone is asked for
    question = SessionRequest(
        messages=(),
        digest=chat.digest(fields),
        choices=chat.positive(fields.get("n"), "n") or 1,
        max_tokens=1 if nothing else chat.positive(fields.get("max_tokens"), "max_tokens"),
        stop=chat.stops(fields.get("stop"), "stop"),
        seed=chat.whole_number(fields.get("seed"), "seed"),
        overridden=overridden(fields, rules.sampling),
        scored=scored,
    )
    asked = [_of_prompt(question, prompt, number) for number, prompt in enumerate(_prompts(fields.get("prompt")))]
    return DialectRequest(asked[0], fields, chat.flag(fields, "stream"), ignored, asked[1:])


def _prompts(given: Any) -> list[Any]:
    """A text, ids, or a list of either."""
    several = isinstance(given, list) and bool(given) and isinstance(given[0], str | list)
    return list(given) if several else [given]


def _of_prompt(question: SessionRequest, prompt: Any, number: int) -> SessionRequest:
    digest_ = question.digest + number & _LARGEST
    if isinstance(prompt, str) and prompt:
        return replace(question, text=prompt, digest=digest_)
    if not isinstance(prompt, list):
        raise CallRefusal("prompt has to be a text, a list of token ids, or a list of these", field="prompt")
    return replace(question, ids=read_ids(prompt, "prompt"), digest=digest_)


def whole(reply: DialectReply) -> dict[str, Any]:
    """See `Dialect.whole`."""
    choices = []
    for index, call in enumerate(reply.calls):
        assert call.answer is not None
        delta = Delta((Text(call.answer.text),), call.made.ids, call.made.logprobs)
        choices.append(_choice(reply, index, delta) | {"finish_reason": chat.finish_reason(reply, index)})
    body = _head(reply) | {"choices": choices, "usage": chat.usage(reply)}
    if reply.fields.get("return_token_ids"):
        body["prompt_token_ids"] = reply.calls[0].prompt_ids.tolist()
    return body


class CompletionEvents(chat.ChatEvents):
    """Chunks of a completion. See `Events`."""

    def __init__(self, reply: DialectReply) -> None:
        super().__init__(reply)
        self._head = _head(reply)
        self._told: dict[int, int] = {}  # characters of the tokens told of each choice

    def begin(self) -> Iterator[bytes]:
        """Nothing comes before the text."""
        yield from ()

    def delta(self, index: int, delta: Delta) -> Iterator[bytes]:
        """One chunk; the first one tells the prompt, too, where it is asked for."""
        start = self._told.get(index)
        yield chat.event(self._head | {"choices": [_choice(self._reply, index, delta, start)]})
        self._told[index] = (start or 0) + sum(len(self._reply.text_of(token)) for token in delta.ids)

    def finish(self, index: int) -> Iterator[bytes]:
        """Why the choice ended."""
        ending = {"index": index, "text": "", "logprobs": None, "finish_reason": chat.finish_reason(self._reply, index)}
        yield chat.event(self._head | {"choices": [ending]})


events, error = CompletionEvents, chat.error
"""See `Dialect.events`, `Dialect.error`."""


def _choice(reply: DialectReply, index: int, delta: Delta, start: int | None = None) -> dict[str, Any]:
    """A choice as far as it came; `start` counts the characters told before, None where none were."""
    fields, call = reply.fields, reply.calls[index]
    said = [] if fields.get("max_tokens") == 0 else [part.text for part in delta.parts if isinstance(part, Text)]
    ids, logprobs = ([], []) if fields.get("max_tokens") == 0 else (list(delta.ids), list(delta.logprobs))
    told: list[Any] = [(token, logprob, None) for token, logprob in zip(ids, logprobs, strict=True)]
    if start is None and chat.flag(fields, "echo"):
        prompt = call.prompt_ids.tolist()
        said.insert(0, call.question.text or reply.decode(prompt))
        scores = call.result.prompt_scores if call.result is not None else ()
        told = [(token, *score) for token, score in zip(prompt, scores, strict=False)] + told
    choice: dict[str, Any] = {"index": index, "text": "".join(said), "logprobs": None, "finish_reason": None}
    if fields.get("logprobs") is not None:
        choice["logprobs"] = _logprobs(reply, told, start or 0)
    if fields.get("return_token_ids"):
        choice["token_ids"] = ids
    return choice


def _logprobs(reply: DialectReply, told: list[Any], start: int) -> dict[str, Any]:
    """Of tokens, each with its log-probability and, in a prompt, the likeliest token in its place with its own."""
    tokens = [reply.text_of(token) for token, _, _ in told]
    values = [logprob for _, logprob, _ in told]
    tops = [
        # nothing stands before a prompt's first token
        None if logprob is None else {token: logprob} | ({reply.text_of(best[0]): best[1]} if best else {})
        for token, (_, logprob, best) in zip(tokens, told, strict=True)
    ]
    offsets = [*accumulate(map(len, tokens), initial=start)][: len(tokens)]
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def _head(reply: DialectReply) -> dict[str, Any]:
    return chat.head(reply, "text_completion", "cmpl")
