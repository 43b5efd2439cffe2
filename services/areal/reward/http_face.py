"""The reward service for people and curl: judge, execute, look, over HTTP with the job's bearer token.

    curl -H "Authorization: Bearer $(cat token)" localhost:8000/judge -d '{"source": "print(3)", "suite": {…}}'

Owns the way between a call and the dispatcher: who goes away takes his run with him, a body has a bounded size, and an
answer without a score is no 200. Listens on loopback unless told otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, TypeAlias, TypeVar

import orjson
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from areal import __version__
from areal.errors import DataError, InfraError
from areal.reward import sandbox_wire
from areal.reward.dispatch.dispatcher import Dispatcher
from areal.reward.dispatch.readiness import Readiness
from areal.reward.dispatch.suite_store import StoredSuite
from areal.reward.dispatch.values import Execution, Overrides, RefusedError, Ticket
from areal.reward.http_models import (
    HTTP_STATUS,
    Asking,
    ExecuteBody,
    JudgeBody,
    SuiteBody,
    executed_json,
    judgement_json,
    offer_json,
)
from areal.reward.judge.formats.registry import FORMATS
from areal.reward.judge.values import Integrity, Judgement, Options, Status, Submission
from areal.reward.sandbox.values import Limits, Tier

MAX_BODY_BYTES = 16 << 20  # as the gRPC side
_OPEN = frozenset({"/healthz", "/readyz"})  # a probe holds no secret
_GRACE_S = 5

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")


class GateLayer:
    """Answers 401 without the token, and 413 to bodies that are too long, before anything reads them."""

    def __init__(self, app: App, token: str, max_body_bytes: int) -> None:
        self._app = app
        self._bearer = f"Bearer {token}".encode()
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if scope["path"] not in _OPEN and not hmac.compare_digest(headers.get(b"authorization", b""), self._bearer):
            await _reply(401, "a valid bearer token is missing: send Authorization: Bearer TOKEN")(scope, receive, send)
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._max_body_bytes:
            await self._too_long()(scope, receive, send)
            return
        # Every body is JSON, also one that curl takes for a form.
        others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
        scope["headers"] = [*others, (b"content-type", b"application/json")]
        left = self._max_body_bytes
        over = False

        async def bounded() -> MutableMapping[str, Any]:
            nonlocal left, over
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                over = True
                return {"type": "http.disconnect"}
            return message

        async def answered(message: MutableMapping[str, Any]) -> None:
            if not over:
                await send(message)

        try:
            await self._app(scope, bounded, answered)
        except Exception:
            if not over:
                raise
        if over:
            await self._too_long()(scope, receive, send)

    def _too_long(self) -> Response:
        most = self._max_body_bytes >> 20
        return _reply(413, f"the body is longer than {most} MB: upload the suite once and send its digest")


def create_app(
    dispatcher: Dispatcher, readiness: Readiness, token: str, *, max_body_bytes: int = MAX_BODY_BYTES
) -> FastAPI:
    """All routes over one dispatcher."""
    app = FastAPI(title="areal reward service", version=__version__, description=__doc__)
    app.add_middleware(GateLayer, token=token, max_body_bytes=max_body_bytes)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        problems = [
            f"{'.'.join(str(part) for part in each['loc'] if part != 'body') or 'body'}: {each['msg']}"
            for each in error.errors()
        ]
        return _reply(422, "; ".join(problems))

    @app.post("/judge", summary="Judge a program")
    async def judge(body: JudgeBody, request: Request) -> Response:
        try:
            suite = await _suite(body)
            judgement = await _unless_gone(request, dispatcher.judge(
                Submission(body.source, body.language), suite, _options(body, dispatcher.offer.min_tier), _ticket(body),
                Overrides(body.limits.given(), body.checker.value() if body.checker else None),
            ))  # fmt: skip
        except RefusedError as refused:
            judgement = Judgement(refused.status, message=refused.message)
        except DataError as error:
            judgement = Judgement(Status.GOLD_ERROR, message=str(error))
        if judgement is None:
            return Response(status_code=499)
        status = 404 if judgement.unknown_suite else HTTP_STATUS.get(judgement.status, 200)
        return _answer(judgement_json(judgement, body.request_id), status, judgement.retry_after_s)

    @app.post("/execute", summary="Run a program once")
    async def execute(body: ExecuteBody, request: Request) -> Response:
        execution = Execution(
            body.source,
            body.language,
            body.stdin.encode("utf-8", "surrogatepass"),
            {path: text.encode("utf-8", "surrogatepass") for path, text in body.files.items()},
            tuple(body.keep),
            Limits(**body.limits.given()),  # type: ignore[arg-type]
            Tier[body.min_tier] if body.min_tier else dispatcher.offer.min_tier,
        )
        executed = await _unless_gone(request, dispatcher.execute(execution, _ticket(body)))
        if executed is None:
            return Response(status_code=499)
        reply = executed_json(executed, body.request_id)
        return _answer(reply, HTTP_STATUS.get(executed.status, 200), executed.retry_after_s)

    @app.post("/suites", summary="Upload a suite once")
    async def put_suite(body: SuiteBody) -> Response:
        try:
            stored = await _read_suite(body.suite, body.format)
            return _answer({"digest": dispatcher.put_suite(stored)}, 200)
        except RefusedError as refused:
            return _reply(400, refused.message)
        except DataError as error:
            return _reply(422, str(error))

    @app.get("/capabilities", summary="What this service runs, and behind what")
    async def capabilities() -> Response:
        reply = offer_json(dispatcher.offer) | {"slots": dispatcher.slots, "version": __version__}
        reply |= {"formats": ["auto", *FORMATS], "ready": readiness.ready, "self_test": readiness.words}
        return _answer(reply, 200)

    @app.get("/healthz", summary="Whether it lives")
    async def healthz() -> Response:
        return _answer({"status": "ok", "tier": dispatcher.offer.tier.name}, 200)

    @app.get("/readyz", summary="Whether the self-test holds")
    async def readyz() -> Response:
        reply = {"ready": readiness.ready, "tier": dispatcher.offer.tier.name, "self_test": readiness.words}
        return _answer(reply, 200 if readiness.ready else 503)

    return app


class HttpServer:
    """uvicorn in the loop that is there already. It takes no signals: who started it stops it."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        self._config = uvicorn.Config(
            app, host=host, port=port, log_level="warning", access_log=False, lifespan="off",
            timeout_graceful_shutdown=_GRACE_S,
        )  # fmt: skip
        self._server = _QuietServer(self._config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listens; returns the port. Raises InfraError when the port is taken."""
        try:
            socket = self._config.bind_socket()
        except SystemExit:
            where = f"{self._config.host}:{self._config.port}"
            raise InfraError(f"can't listen on {where}", fix="stop what uses this port, or choose another") from None
        self._task = asyncio.create_task(self._server.serve([socket]))
        return int(socket.getsockname()[1])

    async def stop(self) -> None:
        """Lets running calls end for a moment."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None of them."""
        yield


def _options(body: JudgeBody, least: Tier) -> Options:
    return Options(
        scoring=body.scoring,
        run_all=body.run_all,
        reveal=body.reveal,
        min_tier=Tier[body.min_tier] if body.min_tier else least,
        min_integrity=Integrity[body.min_integrity],
        total_s=body.total_s,
        no_cache=body.no_cache,
    )


def _ticket(body: Asking) -> Ticket:
    deadline = None if body.timeout_s is None else time.time() + body.timeout_s
    return Ticket(body.tenant, body.its_priority, deadline, body.request_id)


async def _suite(body: JudgeBody) -> StoredSuite | str:
    if (body.suite is None) == (not body.suite_digest):
        raise RefusedError(Status.INVALID_REQUEST, "send either suite or suite_digest")
    return body.suite_digest if body.suite is None else await _read_suite(body.suite, body.format)


async def _read_suite(document: dict[str, Any], format: str) -> StoredSuite:
    return await asyncio.to_thread(lambda: sandbox_wire.suite_of_json(orjson.dumps(document), format))


async def _unless_gone(request: Request, answer: Awaitable[T]) -> T | None:
    """The answer; None when the caller went away, which ends what he asked for."""
    answering = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else None
    finally:
        gone.cancel()
        if not answering.done():
            answering.cancel()
        await asyncio.gather(answering, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _answer(content: Any, status: int, retry_after_s: float = 0.0) -> Response:
    response = Response(orjson.dumps(content), status, media_type="application/json")
    if status in (429, 503):
        response.headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    return response


def _reply(status: int, message: str) -> Response:
    response = _answer({"error": message}, status)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
