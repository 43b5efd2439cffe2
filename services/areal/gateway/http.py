"""HTTP server of a gateway: `/v1/chat/completions` and `/v1/models`, by a session's path and key.

Lives in the running event loop. A client that leaves cancels nothing: its answer waits for the retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from areal.errors import ArealError, InfraError
from areal.gateway.core import Access, Gateway, Opened
from areal.gateway.dialects import chat
from areal.gateway.faults import Refused, over
from areal.gateway.messages import Message
from areal.gateway.session import Call, Limits, Session
from areal.workflow.branches import Node
from areal.workflow.generation import GenerationResult, Ids, Sampling
from areal.workflow.tokenizer import Tokenizer

LOOPBACK = "127.0.0.1"
MAX_BODY = 16 * 1024 * 1024  # bytes of one request
_GRACE_S = 1


class Owner(Protocol):
    """Who generates for a session: the episode that it belongs to."""

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""

    async def generate(self, turn: int, ids: Ids, sampling: Sampling, draw: int) -> GenerationResult:
        """Sample a continuation; raises ArealError. `draw` is what its seed is made of."""


class GatewayServer:
    """Serves the sessions of one process on loopback."""

    def __init__(self, gateway: Gateway, tokenizer: Tokenizer) -> None:
        self.address = ""
        self._gateway = gateway
        self._tokenizer = tokenizer
        self._tasks: dict[Call, asyncio.Task[None]] = {}
        self._of_session: dict[str, set[Call]] = {}
        self._server: _QuietServer | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        routes = []
        for prefix in ("/s/{session}/v1", "/v1"):
            routes.append(Route(f"{prefix}/chat/completions", self._chat, methods=["POST"]))
            routes.append(Route(f"{prefix}/models", self._models, methods=["GET"]))
        app = Starlette(routes=routes, exception_handlers={Refused: _refuse})
        config = uvicorn.Config(
            app, host=LOOPBACK, port=0, log_level="warning", access_log=False, lifespan="off",
            timeout_graceful_shutdown=_GRACE_S,
        )  # fmt: skip
        try:
            socket = config.bind_socket()
        except SystemExit:
            raise InfraError("no free port on loopback", fix="end what uses them all") from None
        self.address = f"http://{LOOPBACK}:{socket.getsockname()[1]}"
        self._server = _QuietServer(config)
        self._serving = asyncio.create_task(self._server.serve([socket]))

    async def stop(self) -> None:
        """End it; running calls get a moment."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)

    def open(self, name: str, owner: Owner, limits: Limits, *, lives_s: float) -> Access:
        """Begin a session."""
        self._of_session[name] = set()
        return self._gateway.open(name, owner, limits, lives_s=lives_s, address=self.address)

    def close(self, name: str, reason: str) -> list[Node]:
        """End a session and its calls under way; returns what was sampled."""
        nodes = self._gateway.close(name, reason)
        for call in self._of_session.pop(name, ()):
            if (task := self._tasks.pop(call, None)) is not None:
                task.cancel()
        return nodes

    # ---- routes

    async def _models(self, request: Request) -> Response:
        opened = self._find(request)
        model = {"id": "policy", "object": "model", "owned_by": "areal", "max_model_len": opened.session.max_tokens}
        return _json({"object": "list", "data": [model]})

    async def _chat(self, request: Request) -> Response:
        opened = self._find(request)
        sampling = opened.owner.sampling
        enforced = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        question, fields = chat.parse(await _body(request), enforced)
        session = opened.session
        retry = request.headers.get("x-stainless-retry-count", "0") != "0"  # of the OpenAI and Anthropic clients
        call, begin = session.ask(question, retry=retry)
        if begin:
            self._begin(opened, call)
        try:
            await self._answered(request, session, call)
        except BaseException:
            session.gone(call)
            raise
        body = chat.response(session.name, call, fields, text_of=self._tokenizer.text_of, created=int(time.time()))
        answer = _Delivered(session, call, orjson.dumps(body))
        if question.overridden:
            answer.headers["x-areal-overridden"] = ", ".join(question.overridden)
        return answer

    def _find(self, request: Request) -> Opened:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise Refused("give the session's API key as a bearer token", status=401, code="invalid_api_key")
        return self._gateway.find(request.path_params.get("session"), key.strip())

    # ---- generations

    def _begin(self, opened: Opened, call: Call) -> None:
        task = asyncio.create_task(self._generate(opened, call), name=f"call {call.number} of {opened.session.name}")
        self._tasks[call] = task
        calls = self._of_session[opened.session.name]
        calls.add(call)
        task.add_done_callback(partial(self._forget, call, calls))

    def _forget(self, call: Call, calls: set[Call], task: asyncio.Task[None]) -> None:
        self._tasks.pop(call, None)
        calls.discard(call)

    async def _generate(self, opened: Opened, call: Call) -> None:
        session, job = opened.session, opened.owner.sampling
        sampling = Sampling(
            temperature=job.temperature,
            max_new_tokens=call.max_new_tokens,
            top_p=job.top_p,
            top_k=job.top_k,
            stop=call.question.stop,
        )
        try:
            result = await opened.owner.generate(call.number, call.prompt_ids, sampling, call.draw)
        except ArealError as error:
            status = 503 if isinstance(error, InfraError) else 400
            session.failed(call, Refused(error.message, status=status, code="generation_failed"))
            return
        session.answered(call, result, self._read(result))

    def _read(self, result: GenerationResult) -> Message:
        """The answer as its client reads it: without the stop string, as OpenAI answers."""
        text = self._tokenizer.decode(result.output_ids)
        if result.matched and text.endswith(result.matched):
            text = text.removesuffix(result.matched)
        return Message("assistant", text)

    async def _answered(self, request: Request, session: Session, call: Call) -> None:
        """Wait for a call's end. Raises Refused when it failed or its session ended, ClientDisconnect for a client
        that left."""
        task = self._tasks.get(call)
        if task is not None:
            gone = asyncio.ensure_future(_disconnected(request))
            try:
                await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
            if not task.done():
                raise ClientDisconnect
            if task.cancelled():
                raise over(session.over)
        if call.fault is not None:
            raise call.fault


class _Delivered(Response):
    """A response that tells its session whether it left whole."""

    media_type = "application/json"

    def __init__(self, session: Session, call: Call, content: bytes) -> None:
        super().__init__(content)
        self._session = session
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except BaseException:
            self._session.gone(self._call)
            raise
        self._session.delivered(self._call)


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None of them: the owner stops it."""
        yield


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes:
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > MAX_BODY:
            raise Refused(f"the body has more than {MAX_BODY} bytes", status=413, code="too_large")
    return bytes(chunks)


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return Response(orjson.dumps(error.body), error.status, error.headers, "application/json")
