"""HTTP server of a gateway: the routes of its dialects, by a session's path and key.

Lives in the running event loop. A client that leaves cancels nothing: its answer waits for the retry.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from areal.errors import ArealError, InfraError
from areal.gateway.admission import IGNORED_HEADER, AdmissionRules, header_of
from areal.gateway.core import Access, GatewayCore, OpenSession
from areal.gateway.dialects import chat, completions, inference, messages, responses
from areal.gateway.dialects.dialect import Dialect, DialectReply, DialectRequest, read_object
from areal.gateway.faults import CallRefusal, body_of, broken, key_of, over
from areal.gateway.messages import names_of
from areal.gateway.reading import AnswerReader, Manner, read
from areal.gateway.session import EpisodeCalls, SessionCall, SessionLimits, SessionRequest
from areal.gateway.streams import StreamedAnswering
from areal.net.http_server import HttpServer
from areal.values.generation import GenerationResult, Ids, OnTokens, Sampling
from areal.workflow.branches import SessionEnding
from areal.workflow.tokenizer import Tokenizer

# AReaL's routes of an episode for agents that score themselves: `rl/start_session`, `rl/set_reward`, `rl/end_session`.


def episode_routes(
    prefix: str, find: Callable[[Request], OpenSession], ended: Callable[[EpisodeCalls], None]
) -> list[Route]:
    """The routes below `prefix` and below its `/v1`; `ended` is told of a session that its agent has ended."""

    async def start(request: Request) -> Response:
        return _json({"session_id": find(request).session.name, "api_key": key_of(request)})

    async def reward(request: Request) -> Response:
        session = find(request).session
        fields = read_object(await body_of(request))
        value, answer = fields.get("reward"), fields.get("interaction_id")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise CallRefusal(f"reward is {value!r}, not a finite number", field="reward")
        session.score(float(value), None if answer is None else str(answer))
        return _json({"message": "success"})

    async def end(request: Request) -> Response:
        session = find(request).session
        if session.over:
            raise over(session.over)
        session.close("its agent has ended it")
        ended(session)
        return _json({"message": "success", "interaction_count": session.calls})

    routes = {"start_session": start, "set_reward": reward, "end_session": end}
    return [
        Route(f"{prefix}{version}/rl/{name}", route, methods=["POST"])
        for version in ("", "/v1")
        for name, route in routes.items()
    ]


log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_GRACE_S = 1
DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": chat,
    "/v1/completions": completions,
    "/v1/messages": messages,
    "/v1/responses": responses,
    "/v1/v1/messages": messages,  # Anthropic's clients put their own /v1 behind the base URL
    "/inference/v1/generate": inference,
}
Endpoint = Callable[[Request], Awaitable[Response]]


class Owner(Protocol):
    """Who generates for a session: the episode that it belongs to."""

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""

    async def generate(
        self, turn: int, ids: Ids, sampling: Sampling, draw: int, on_tokens: OnTokens
    ) -> GenerationResult:
        """Sample a continuation; raises ArealError. `draw` is what its seed is made of; `on_tokens` is told each token
        once, or never."""


class GatewayServer:
    """Serves the sessions of one process on loopback."""

    def __init__(self, gateway: GatewayCore, tokenizer: Tokenizer, *, ignores: bool = False) -> None:
        """`ignores`: what would change the distribution of tokens is ignored instead of refused."""
        self.address = ""
        self._ignores = ignores
        self._gateway = gateway
        self._tokenizer = tokenizer
        self._tasks: dict[SessionCall, asyncio.Task[None]] = {}
        self._of_session: dict[str, set[SessionCall]] = {}
        self._on_end: dict[str, Callable[[], None]] = {}
        self._server: HttpServer | None = None

    def start(self, host: str = LOOPBACK, port: int = 0) -> None:
        """Listen, on a free port unless told. Raises InfraError when the port can't be had."""
        self._server = HttpServer(self.app(), host, port, grace_s=_GRACE_S)
        self.address = f"http://{host}:{self._server.start()}"

    def app(self) -> Starlette:
        """The routes of its sessions."""
        routes = []
        for prefix in ("/s/{session}", ""):
            for path, dialect in DIALECTS.items():
                routes.append(Route(prefix + path, _in_shape(dialect, partial(self._ask, dialect)), methods=["POST"]))
            for path in ("/v1/messages", "/v1/v1/messages"):
                count = _in_shape(messages, self._count)
                routes.append(Route(f"{prefix}{path}/count_tokens", count, methods=["POST"]))
            routes.append(Route(f"{prefix}/v1/models", _in_shape(chat, self._models), methods=["GET"]))
            routes.append(Route(f"{prefix}/v1/models/{{name:path}}", _in_shape(chat, self._model), methods=["GET"]))
            routes += [Route(f"{prefix}{path}", _alive, methods=["GET"]) for path in PROBES if prefix or path]
            routes += self._own_routes(prefix)
        return Starlette(routes=routes, exception_handlers={CallRefusal: _refuse, HTTPException: _refuse_route})

    async def stop(self) -> None:
        """End it; running calls get a moment."""
        if self._server is not None:
            await self._server.stop()

    def open(
        self,
        name: str,
        owner: Owner,
        limits: SessionLimits,
        *,
        lives_s: float,
        on_end: Callable[[], None] | None = None,
        address: str | None = None,
    ) -> Access:
        """Begin a session; `on_end` is told when its agent has ended it with a reward.

        `address` is where agents find it, unless that is here.
        """
        self._of_session[name] = set()
        if on_end is not None:
            self._on_end[name] = on_end
        return self._gateway.open(name, owner, limits, lives_s=lives_s, address=address or self.address)

    def close(self, name: str, reason: str) -> SessionEnding:
        """End a session and its calls under way; returns what was sampled and the reward that was posted."""
        self._on_end.pop(name, None)
        finished = self._gateway.close(name, reason)
        for call in self._of_session.pop(name, ()):
            if (task := self._tasks.pop(call, None)) is not None:
                task.cancel()
        return finished

    # ---- routes

    def _own_routes(self, prefix: str) -> list[Route]:
        """Those of sessions that are episodes."""
        return episode_routes(prefix, self._find, self._ended)

    def _ended(self, session: EpisodeCalls) -> None:
        if session.reward is not None and (told := self._on_end.pop(session.name, None)) is not None:
            told()

    async def _models(self, request: Request) -> Response:
        model = self._described(request)
        return _json(
            {"object": "list", "data": [model], "first_id": model["id"], "last_id": model["id"], "has_more": False}
        )

    async def _model(self, request: Request) -> Response:
        return _json(self._described(request))

    def _described(self, request: Request) -> dict[str, Any]:
        """The one model there is, for any name, as OpenAI's and Anthropic's clients read it. Raises Refused."""
        return described("policy", self._find(request).session.max_tokens)

    async def _count(self, request: Request) -> Response:
        return await self._counted(self._find(request), request)

    async def _counted(self, opened: OpenSession, request: Request) -> Response:
        asked = messages.parse(await body_of(request), self._rules(opened))
        return _json(messages.counted(opened.session.measure(asked.question)))

    async def _ask(self, dialect: Dialect, request: Request) -> Response:
        opened = self._find(request)
        asked = dialect.parse(await body_of(request), self._rules(opened))
        return self._answer(dialect, opened, request, asked)

    def _rules(self, opened: OpenSession) -> AdmissionRules:
        sampling = opened.owner.sampling
        enforced = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        seen, names = self._tokenizer.image_shape is not None, frozenset(self._tokenizer.kwargs)
        return AdmissionRules(enforced, self._ignores, images=seen, template_names=names)

    def _answer(self, dialect: Dialect, opened: OpenSession, request: Request, asked: DialectRequest) -> Response:
        """Begin what a request asks for; the response waits for it. Raises Refused."""
        session = opened.session
        retry = request.headers.get("x-stainless-retry-count", "0") != "0"  # of the OpenAI and Anthropic clients
        if asked.question.tools and (why := self._gateway.template.calls.why):
            raise CallRefusal(
                f"this model's chat template can't call tools: {why}", code="unsupported_field", field="tools"
            )
        questions = [_ended(each, opened.owner.sampling) for each in (asked.question, *asked.more)]
        calls = session.choices(questions, retry=retry)
        for call, begin in calls:
            if begin:
                call.created = int(time.time())
                self._begin(opened, call)
        reply = DialectReply(
            session.name,
            tuple(call for call, _ in calls),
            asked.fields,
            self._tokenizer.piece,
            self._tokenizer.decode,
            asked.named,
        )
        self._gateway.ignored(asked.ignored)
        told = {"x-areal-overridden": ", ".join(asked.question.overridden), IGNORED_HEADER: header_of(asked.ignored)}
        return StreamedAnswering(
            dialect,
            session,
            reply,
            stream=asked.stream,
            reader_of=partial(self._reader, session.name),
            headers={name: value for name, value in told.items() if value},
        )

    def _find(self, request: Request) -> OpenSession:
        return self._gateway.find(request.path_params.get("session"), key_of(request))

    # ---- generations

    def _begin(self, opened: OpenSession, call: SessionCall) -> None:
        task = asyncio.create_task(self._generate(opened, call), name=f"call {call.number} of {opened.session.name}")
        self._tasks[call] = task
        calls = self._of_session[opened.session.name]
        calls.add(call)
        task.add_done_callback(partial(self._forget, call, calls))

    def _forget(self, call: SessionCall, calls: set[SessionCall], task: asyncio.Task[None]) -> None:
        self._tasks.pop(call, None)
        calls.discard(call)

    async def _generate(self, opened: OpenSession, call: SessionCall) -> None:
        session, job = opened.session, opened.owner.sampling
        sampling = Sampling(
            temperature=job.temperature,
            max_new_tokens=call.max_new_tokens,
            top_p=job.top_p,
            top_k=job.top_k,
            min_new_tokens=job.min_new_tokens,
            stop=call.question.stop,
            stop_token_ids=call.question.stop_token_ids,
        )
        try:
            images = call.question.images
            generate = partial(opened.owner.generate, images=images) if images else opened.owner.generate
            result = await generate(call.number, call.prompt_ids, sampling, call.draw, call.made.add)
            reader = self._reader(session.name, call)
            answer = read(reader, result.output_ids.tolist())
            call.unparsed, call.stopped = reader.unparsed, reader.stopped
            session.answered(call, result, answer)
        except ArealError as error:
            status = 503 if isinstance(error, InfraError) else 400
            session.failed(call, CallRefusal(error.message, status=status, code="generation_failed"))
        except asyncio.CancelledError:
            session.failed(call, CallRefusal("the call was given up", status=503, code="generation_failed"))
            raise
        except Exception:
            log.exception("call %d of %s failed", call.number, session.name)
            session.failed(call, broken())

    def _reader(self, session: str, call: SessionCall) -> AnswerReader:
        template, question = self._gateway.template, call.question
        manner = Manner(
            stops=question.stop,
            form=template.form if question.tools and question.calls_tools else None,
            names=names_of(question.tools),
            thinks=template.thinks and bool(question.messages),
            tags=template.tags,
            thinking=bool(question.messages) and template.opens_thinking(call.prompt_ids),
            call_id=f"call_{session}_{call.number}_{{}}".format,
        )
        return AnswerReader(self._tokenizer, manner)


def _in_shape(dialect: Dialect, endpoint: Endpoint) -> Endpoint:
    """An endpoint whose refusals have the dialect's shape."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except CallRefusal as error:
            fault = error
        except ClientDisconnect:
            raise
        except Exception:
            log.exception("%s failed", request.url.path)
            fault = broken()
        return Response(orjson.dumps(dialect.error(fault)), fault.status, fault.headers, "application/json")

    return answer


def described(name: str, context: int) -> dict[str, Any]:
    """A model, as OpenAI's and Anthropic's clients read it."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "areal", "max_model_len": context}
    return openai | {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


PROBES = ("", "/", "/v1", "/v1/", "/health", "/v1/health")
"""Below a session's path or the root; clients ask them whether somebody is there, without a key."""


def is_probe(request: Request) -> bool:
    """Whether a request asks only whether somebody is there."""
    path = request.url.path
    inner = "/" + path.removeprefix("/s/").partition("/")[2] if path.startswith("/s/") else path
    return request.method in ("GET", "HEAD") and inner in PROBES


async def _alive(request: Request) -> Response:
    return _json({"status": "ok"})


def dialect_of(path: str) -> Dialect | None:
    """The dialect of a request's path, with a session or without; None where it has none."""
    if path.startswith("/s/"):
        path = "/" + path.removeprefix("/s/").partition("/")[2]
    return messages if path.startswith(("/v1/messages", "/v1/v1/messages")) else DIALECTS.get(path)


def _ended(question: SessionRequest, job: Sampling) -> SessionRequest:
    """The question with what ends an answer of the job, beside what it asks for itself."""
    stop = tuple(dict.fromkeys((*question.stop, *job.stop)))
    return replace(question, stop=stop, stop_token_ids=(*question.stop_token_ids, *job.stop_token_ids))


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, CallRefusal)
    return Response(orjson.dumps(error.body), error.status, error.headers, "application/json")


async def _refuse_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    fault = CallRefusal(
        f"{request.method} {request.url.path} is not served here", status=error.status_code, code="not_found"
    )
    shown = (dialect_of(request.url.path) or chat).error(fault)
    return Response(orjson.dumps(shown), fault.status, fault.headers, "application/json")
