"""Requests and results of the engine as values, and the reading of `/generate` bodies into them.

Owns validation: whatever passes here can be computed, so the scheduler never meets an id outside the vocabulary, an
empty prompt or an unknown option. Everything refused is a `BadRequest`, which the HTTP face answers with 400.
"""

import secrets
import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from areal.errors import DataError
from areal.image_shape import ImageShape
from areal.values.generation import Ids, as_ids
from areal.values.images import Image, image_of

INCREMENTS = "incremental_streaming_output"  # of a call; stock SGLang has the flag of this name for all its calls

# Options of SGLang that the engine accepts at these values only: at others they would silently change the distribution.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "logit_bias": (None, {}),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "structural_tag": (None,),
    "stop_regex": (None, []),
    "custom_params": (None, {}),
}
# These change only the text or are hints; reading them is enough.
_IGNORED = frozenset({"skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"})
_KNOWN = frozenset(
    {"max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids"}
    | {"ignore_eos", "sampling_seed", "stream_interval"}
)


class Matcher(Protocol):
    """Which tokens may come next in one answer."""

    def forbid(self, logits: Tensor) -> None:
        """Make all others impossible, in place; `logits` is [vocab]."""

    def take(self, token: int) -> None:
        """This token came."""


class BadRequest(ValueError):
    """The caller's mistake, in words for the caller."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue one prompt."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0  # unsigned 64 bits
    stream_interval: int = 1


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What a request is checked against."""

    vocab: int
    context: int
    stream_interval: int = 1  # of requests that name none
    text: bool = True  # whether there is a tokenizer, which stop strings need
    images: ImageShape | None = None  # of a model that reads images

    def shift(self, ids: Ids, images: tuple[Image, ...]) -> int:
        """By how much the positions of tokens behind a prompt's images differ from their places."""
        if self.images is None or not images:
            return 0
        return int(self.images.positions(ids, images)[0, -1]) + 1 - len(ids)


@dataclass(eq=False, slots=True)
class GenerateRequest:
    """One prompt to continue. `input_ids` is int64 [tokens]."""

    rid: str
    input_ids: NDArray[np.int64]
    sampling: SamplingParams
    return_logprob: bool = False
    logprob_start_len: int = -1  # from this token on, log-probabilities of the prompt are wanted too
    stream: bool = False
    increments: bool = False  # a streamed event has only what the ones before had not
    matcher: Matcher | None = None  # of the tokens that may come next; any, without
    return_routes: bool = False  # the experts of each token, where the model has some
    images: tuple[Image, ...] = ()  # in the order of their tokens
    shift: int = 0  # of the positions of tokens behind them, from the tokens' places


@dataclass(slots=True)
class Output:
    """All that a request has made so far; `finish` is None while it runs."""

    request: GenerateRequest
    output_ids: list[int]
    logprobs: list[float]
    spans: list[tuple[str, int, int]]  # (weight version, start, end), half-open
    weight_version: str
    finish: dict[str, Any] | None = None
    retractions: int = 0
    input_logprobs: list[float] | None = None  # of prompt tokens 1…; token 0 has none
    input_tops: list[tuple[int, float]] | None = None  # the likeliest token in each of these places, with its own
    routes: bytearray = field(default_factory=bytearray)  # rows of all tokens but the last, as `RouteShape.rows`; more
    route_bytes: int = 0  # may follow. Of one row
    text: str = ""


def parse_generate(body: Any, limits: RequestLimits) -> tuple[list[GenerateRequest], bool]:
    """The requests of a `/generate` body, and whether it was a batch."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    prompts = body.get("input_ids")
    if prompts is None:
        raise BadRequest("input_ids is missing: this engine takes token ids, not text")
    if not isinstance(prompts, list) or not prompts:
        raise BadRequest("input_ids must be a list of ids, or of lists of ids, that is not empty")
    batch = isinstance(prompts[0], list)
    items: list[Any] = prompts if batch else [prompts]
    count = len(items)
    rids = _each(body.get("rid"), count, batch, "rid")
    sampling = _each(body.get("sampling_params"), count, batch, "sampling_params")
    wants = _each(body.get("return_logprob"), count, batch, "return_logprob")
    starts = _each(body.get("logprob_start_len"), count, batch, "logprob_start_len")
    pictures = _each(body.get("image_data"), count, batch, "image_data")
    routes = bool(body.get("return_routed_experts", False))
    stream, increments = bool(body.get("stream", False)), bool(body.get(INCREMENTS, False))
    interval = body.get("stream_interval") or limits.stream_interval
    parsed: dict[int, SamplingParams] = {}  # a batch usually shares one object, or few
    requests = []
    for index in range(count):
        raw = sampling[index] or {}
        shared = parsed.get(id(raw))
        if shared is None:
            shared = parsed[id(raw)] = parse_sampling(raw, limits, interval)
        params = shared if raw.get("sampling_seed") is not None else replace(shared, seed=secrets.randbits(64))
        given, images, shift = _with_images(items[index], pictures[index], limits)
        ids = check_ids(given, limits, params.max_new_tokens)
        start = -1 if starts[index] is None else int(starts[index])
        if start >= len(ids):
            raise BadRequest(f"logprob_start_len {start} is beyond the prompt of {len(ids)} tokens")
        rid = rids[index] or secrets.token_hex(16)
        if not isinstance(rid, str):
            raise BadRequest("rid must be a string")
        if images and start >= 0:
            raise BadRequest("log-probabilities of a prompt with images aren't computed")
        scored = bool(wants[index])
        made = GenerateRequest(rid, ids, params, scored, start, stream, increments, None, routes, images, shift)
        requests.append(made)
    return requests, batch


def _with_images(ids: Any, given: Any, limits: RequestLimits) -> tuple[Any, tuple[Image, ...], int]:
    """Ids with a placeholder for each image, as SGLang takes them, with as many as the model reads; the images, and by
    how much positions behind them are shifted."""
    if not given:
        return ids, (), 0
    if limits.images is None:
        raise BadRequest("this model reads no images")
    try:
        images = tuple(image_of(each) for each in (given if isinstance(given, list) else [given]))
        whole = limits.images.expanded(as_ids(ids), images)
        return whole.tolist(), images, limits.shift(whole, images)
    except (DataError, TypeError, ValueError, OverflowError) as error:
        raise BadRequest(f"image_data: {error}") from error


def check_ids(ids: Any, limits: RequestLimits, max_new_tokens: int) -> NDArray[np.int64]:
    """The prompt as an array. Refuses what is empty, outside the vocabulary, or too long with its continuation."""
    if not isinstance(ids, list) or not ids:
        raise BadRequest("a prompt must be a list of at least one token id")
    try:
        array = np.asarray(ids)
    except ValueError as error:  # lists of different lengths
        raise BadRequest("input_ids must hold integers") from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadRequest("input_ids must hold integers")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= limits.vocab:
        raise BadRequest(f"token id {low if low < 0 else high} is outside the vocabulary of {limits.vocab}")
    if array.size + max_new_tokens > limits.context:
        raise BadRequest(
            f"{array.size} prompt tokens and {max_new_tokens} new ones exceed the context of {limits.context} tokens"
        )
    return array.astype(np.int64, copy=False)


def parse_sampling(raw: Any, limits: RequestLimits, stream_interval: int = 1) -> SamplingParams:
    """Sampling parameters of SGLang's names. Unknown names and values that the engine can't honour are refused."""
    if not isinstance(raw, dict):
        raise BadRequest("sampling_params must be an object")
    for name, value in raw.items():
        if name in _NEUTRAL:
            if value not in _NEUTRAL[name]:
                raise BadRequest(f"the embedded engine does not implement {name}={value!r}")
        elif name not in _KNOWN and name not in _IGNORED:
            raise BadRequest(f"unknown sampling parameter {name!r}")
    stop = raw.get("stop") or ()
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    if stop and not limits.text:
        raise BadRequest("stop strings need a tokenizer, and this engine has none")
    seed = raw.get("sampling_seed")
    params = SamplingParams(
        max_new_tokens=_number(raw, "max_new_tokens", 128, low=0),
        min_new_tokens=_number(raw, "min_new_tokens", 0, low=0),
        temperature=float(_number(raw, "temperature", 1.0, low=0)),
        top_p=float(_number(raw, "top_p", 1.0, low=0, high=1)),
        top_k=_number(raw, "top_k", -1, low=-1),
        min_p=float(_number(raw, "min_p", 0.0, low=0, high=1)),
        stop=stop,
        stop_token_ids=tuple(int(item) for item in raw.get("stop_token_ids") or ()),
        ignore_eos=bool(raw.get("ignore_eos", False)),
        seed=int(seed) % 2**64 if seed is not None else secrets.randbits(64),
        stream_interval=max(1, int(raw.get("stream_interval") or stream_interval)),
    )
    if params.min_new_tokens > params.max_new_tokens:
        raise BadRequest("min_new_tokens exceeds max_new_tokens")
    if params.top_p == 0.0:
        raise BadRequest("top_p must be above 0")
    return params


def _number(raw: dict[str, Any], name: str, default: Any, *, low: float, high: float | None = None) -> Any:
    value = raw.get(name)
    if value is None:
        return default
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value < low
        or (high is not None and value > high)
    ):
        raise BadRequest(f"{name} must be a number of at least {low}" + (f" and at most {high}" if high else ""))
    if isinstance(default, int) and not isinstance(value, int):
        raise BadRequest(f"{name} must be an integer")
    return value


def _each(value: Any, count: int, batch: bool, name: str) -> Sequence[Any]:
    """A field of each request: a list in a batch, or one value for all."""
    if batch and isinstance(value, list):
        if len(value) != count:
            raise BadRequest(f"{name} has {len(value)} entries for {count} prompts")
        return value
    if name == "rid" and value is not None and count > 1:
        return [f"{value}_{index}" for index in range(count)]
    return [value] * count


# ---- The JSON that `/generate` answers, in SGLang's shape


def generate_reply(output: Output, received_s: float, told: int = 0) -> dict[str, Any]:
    """One result object: all that there is, without the first `told` tokens. `received_s` is the clock at arrival."""
    request = output.request
    ids = output.output_ids[told:]
    prompt = len(request.input_ids)
    now = time.time()
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": output.finish,
        "prompt_tokens": prompt,
        "completion_tokens": len(output.output_ids),
        "cached_tokens": 0,
        "weight_version": output.weight_version,
        "weight_versions": [{"version": name, "start": start, "end": end} for name, start, end in output.spans],
        "num_retractions": output.retractions,
        "e2e_latency": now - received_s,
    }
    if request.return_logprob:
        meta["input_token_logprobs"] = _prompt_logprobs(output)
        meta["output_token_logprobs"] = [
            [logprob, token, None] for logprob, token in zip(output.logprobs[told:], ids, strict=True)
        ]
        meta["output_token_logprobs_length"] = len(output.output_ids)
    if output.routes:
        first = prompt - 1 + told if told else 0
        end, size = prompt - 1 + len(output.output_ids), output.route_bytes
        meta["routed_experts"] = b64encode(output.routes[first * size : end * size]).decode()
        meta["routed_experts_rows"] = end - first
    return {"text": output.text, "output_ids": ids, "meta_info": meta}


def _prompt_logprobs(output: Output) -> list[list[Any]]:
    """Triples of the prompt from `logprob_start_len` on; the first has no log-probability."""
    if output.input_logprobs is None:
        return []
    ids = output.request.input_ids[output.request.logprob_start_len :].tolist()
    return [[logprob, token, None] for logprob, token in zip([None, *output.input_logprobs], ids, strict=True)]


def error_reply(message: str) -> dict[str, Any]:
    """An error as SGLang words it."""
    return {"error": {"message": message}}
