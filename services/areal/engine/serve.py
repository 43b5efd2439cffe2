"""`areal serve`: a model behind OpenAI's and Anthropic's APIs on this machine, by the embedded engine."""

import argparse
import asyncio
import hmac
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from areal.engine.embedded import EngineOptions, TorchEngine
from areal.engine.grammar import FIELDS, Grammars, available
from areal.engine.request import BadRequest, GenerateRequest, Output, SamplingParams
from areal.errors import ArealError, ConfigError, DataError, ExitCode, InfraError
from areal.gateway.admission import AdmissionRules
from areal.gateway.core import GatewayCore, OpenSession
from areal.gateway.dialects.dialect import Dialect, DialectRequest
from areal.gateway.faults import CallRefusal, body_of, key_of
from areal.gateway.http import LOOPBACK, GatewayServer, described
from areal.gateway.session import SessionLimits, SessionRequest
from areal.gateway.templates.template import Template
from areal.plan import remote
from areal.values.generation import GenerationResult, Ids, OnTokens, PromptScore, Sampling, TokenSpan, as_ids
from areal.values.images import Image
from areal.weights.exports import reading
from areal.workflow.tokenizer import Tokenizer

_HERE = ("127.0.0.1", "::1", "localhost")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        if arguments.host not in _HERE and not arguments.key:
            raise ConfigError(f"{arguments.host} can be reached by others", fix="give a key: --key, or AREAL_SERVE_KEY")
        model = model_of(arguments.model)
        with reading(model) as held:
            return asyncio.run(_serve(held, arguments))
    except ArealError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.DONE)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="areal serve", allow_abbrev=False, description=__doc__)
    made.add_argument(
        "model", metavar="MODEL|RUN", help="a model directory, a finished run, hf://owner/name, or s3://bucket/name"
    )
    made.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
    made.add_argument("--host", default=LOOPBACK, help="default: %(default)s")
    made.add_argument("--key", default=os.environ.get("AREAL_SERVE_KEY", ""), help="API key; or AREAL_SERVE_KEY")
    made.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    return made


def model_of(named: str) -> Path:
    """The model's directory. Raises ConfigError."""
    if remote.is_remote(named):
        return remote.fetch(named, print)
    path = Path(named)
    if (path / "resolved.json").is_file():
        path = path / "model"
        if not path.is_dir():
            raise ConfigError(f"the run {named} has no model yet", fix="wait for its end, or name a model directory")
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path} is no Hugging Face model: it has no config.json", fix="name a model or a run")
    return path


async def _serve(model: Path, arguments: argparse.Namespace) -> int:
    stopped, failed = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def fail(_error: BaseException) -> None:
        loop.call_soon_threadsafe(failed.set)

    engine = TorchEngine(EngineOptions(model_path=model, dtype=arguments.dtype, weight_version="served"), fail)
    name = arguments.model.rstrip("/").rpartition("/")[2]
    server = ModelServer(engine, Tokenizer.from_dir(model), name=name, key=arguments.key)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    engine.start()
    try:
        server.start(arguments.host, arguments.port)
        print(f"serving {model} at {server.address}/v1 (Ctrl-C ends it)", flush=True)
        waits = [asyncio.ensure_future(event.wait()) for event in (stopped, failed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    finally:
        await server.stop()
        engine.stop()
    return int(ExitCode.BUG if failed.is_set() else ExitCode.DONE)


# ---- OpenAI- and Anthropic-compatible API over one model: the gateway's dialects without an episode


MOST_CHOICES = 128  # answers to one request
HONOURED = frozenset({"min_p", "min_tokens", "ignore_eos"})
REFUSAL = "this engine can't do it"
_LIVES_S = 3600.0


class ModelServer(GatewayServer):
    """Serves one engine. Without a `key` every request is answered: listen on loopback only."""

    def __init__(self, engine: TorchEngine, tokenizer: Tokenizer, *, name: str, key: str = "") -> None:
        clock = asyncio.get_running_loop().time
        super().__init__(GatewayCore(Template(tokenizer), secret=secrets.token_bytes(32), clock=clock), tokenizer)
        self._engine = engine
        self._ends = tuple(sorted(tokenizer.eos_ids))
        self._name = name
        self._key = key
        self._grammars = Grammars(tokenizer, self._gateway.template, engine.config.vocab, self._ends)
        self._unique = f"{name}.{secrets.token_hex(4)}"  # ids of calls never come again, in another server neither
        self._numbers = count()

    def _rules(self, opened: OpenSession | None = None) -> AdmissionRules:
        """Sampling is the request's; what the engine can't do is refused."""
        honours = HONOURED | FIELDS if available() else HONOURED
        names = frozenset(self._tokenizer.free_names)
        seen = self._tokenizer.image_shape is not None
        return AdmissionRules(honours=honours, prompt_logprobs=True, images=seen, template_names=names, refusal=REFUSAL)

    def _open(self, asked: DialectRequest) -> OpenSession:
        """A session for one request."""
        wanted = sum(question.choices for question in (asked.question, *asked.more))
        if wanted > MOST_CHOICES:
            raise CallRefusal(f"a request has at most {MOST_CHOICES} answers: n times its prompts", field="n")
        context = self._engine.context
        name = f"{self._unique}.{next(self._numbers)}"
        limits = SessionLimits(context, context * MOST_CHOICES, max_calls=MOST_CHOICES)
        owner = EngineOwner(self._engine, asked, self._ends, self._grammars if available() else None)
        access = self.open(name, owner, limits, lives_s=_LIVES_S)
        return self._gateway.find(name, access.api_key)

    def _authorise(self, request: Request) -> None:
        if self._key and not hmac.compare_digest(key_of(request).encode(), self._key.encode()):
            raise CallRefusal("the API key is not this server's", status=401, code="invalid_api_key")

    def _own_routes(self, prefix: str) -> list[Route]:
        """None: a request is no episode."""
        return []

    def _described(self, request: Request) -> dict[str, Any]:
        self._authorise(request)
        return described(self._name, self._engine.context)

    async def _count(self, request: Request) -> Response:
        self._authorise(request)
        opened = self._open(DialectRequest(SessionRequest((), 0), {}))
        try:
            return await self._counted(opened, request)
        finally:
            self.close(opened.session.name, "it was answered")

    async def _ask(self, dialect: Dialect, request: Request) -> Response:
        self._authorise(request)  # before its body is read
        asked = dialect.parse(await body_of(request), self._rules())
        opened = self._open(asked)
        try:
            return _ClosingResponse(self._answer(dialect, opened, request, asked), self, opened.session.name)
        except BaseException:
            self.close(opened.session.name, "it was refused")
            raise


class _ClosingResponse(Response):
    """A response after which its session ends."""

    def __init__(self, response: Response, server: ModelServer, session: str) -> None:
        super().__init__()
        self._response = response
        self._server = server
        self._session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            self._server.close(self._session, "it was answered")


class EngineOwner:
    """Generates for one request. See `areal.gateway.http.Owner`."""

    def __init__(
        self, engine: TorchEngine, asked: DialectRequest, ends: tuple[int, ...] = (), grammars: Grammars | None = None
    ) -> None:
        """`ends` are the tokens that end an answer. Raises Refused for sampling or a grammar that is none."""
        inner = asked.fields.get("sampling_params")
        self._fields: Mapping[str, Any] = inner if isinstance(inner, Mapping) else asked.fields
        self.sampling = _sampling(self._fields)
        self._engine = engine
        self._ends = ends
        self._scored = asked.question.scored
        self._matcher = partial(grammars.matcher, self._fields, asked.question) if grammars is not None else None
        if self._matcher is not None:
            self._matcher()  # refused before anything is generated

    async def generate(
        self, turn: int, ids: Ids, sampling: Sampling, draw: int, on_tokens: OnTokens, images: tuple[Image, ...] = ()
    ) -> GenerationResult:
        """See `Owner.generate`; `draw` counts only where the client gave a seed."""
        room = self._engine.context - len(ids)
        if room <= 0:
            raise DataError(f"a prompt of {len(ids)} tokens fills the context of {self._engine.context}")
        unending = self._fields.get("ignore_eos") is True
        params = SamplingParams(
            max_new_tokens=min(sampling.max_new_tokens, room),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            stop=sampling.stop,
            stop_token_ids=(*sampling.stop_token_ids, *(() if unending else self._ends)),
            seed=draw if self._fields.get("seed") is not None else secrets.randbits(63),
            min_p=_number(self._fields, "min_p", 0.0, 0.0, 1.0),
            min_new_tokens=min(int(_number(self._fields, "min_tokens", 0.0, 0.0, 1e9)), sampling.max_new_tokens, room),
            ignore_eos=unending,
        )
        start = 0 if self._scored else -1
        matcher = self._matcher() if self._matcher is not None else None
        request = GenerateRequest(
            secrets.token_hex(16), ids.astype(np.int64), params, True, start, stream=True, matcher=matcher,
            images=images, shift=self._engine.limits.shift(ids, images),
        )  # fmt: skip
        try:
            subscription = self._engine.submit([request])
        except BadRequest as error:
            raise DataError(str(error)) from error
        told, last = 0, None
        try:
            while outputs := await subscription.next():
                last = outputs[-1]
                on_tokens(as_ids(last.output_ids[told:]), np.array(last.logprobs[told:], "<f4"))
                told = len(last.output_ids)
        finally:
            self._engine.release(subscription)
        return _result(last)


def _result(output: Output | None) -> GenerationResult:
    finish = (output.finish or {}) if output is not None else {}
    if output is None or finish.get("type") not in ("stop", "length"):
        raise InfraError(f"the engine ended the answer: {finish.get('message', 'it stopped')}")
    spans = tuple(TokenSpan(start, end, version, "engine") for version, start, end in output.spans)
    logprobs = np.array(output.logprobs, "<f4")
    scores: tuple[PromptScore, ...] = ()
    if output.input_logprobs is not None and output.input_tops is not None:
        scores = ((None, None), *zip(output.input_logprobs, output.input_tops, strict=True))
    return GenerationResult(as_ids(output.output_ids), logprobs, spans, finish["type"], prompt_scores=scores)


def _sampling(fields: Mapping[str, Any]) -> Sampling:
    """The sampling that a request asks for. Raises Refused for values that mean nothing."""
    return Sampling(
        temperature=_number(fields, "temperature", 1.0, 0.0, 100.0),
        top_p=_number(fields, "top_p", 1.0, 1e-9, 1.0),
        top_k=int(_number(fields, "top_k", 0.0, -1.0, 1e6)) if fields.get("top_k") != -1 else 0,
    )


def _number(fields: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise CallRefusal(f"{name} is a number from {low:g} to {high:g}", field=name)
    return float(value)


if __name__ == "__main__":
    sys.exit(main())
