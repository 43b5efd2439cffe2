"""The HTTP face of the sandbox: the JSON form of `sandbox.proto`'s messages, a route for each RPC.

    curl -H "Authorization: Bearer $(cat token)" localhost:7651/v1/execute -d '{"program": {"source": "print(3)"}}'

A client that disconnects cancels its run, a body has a bounded size, and an answer without a score is no 200. A stream
is a JSON object a line, both ways.
"""

import asyncio
import base64
import contextlib
import hmac
import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

import orjson
from areal.errors import DataError
from areal.v1 import sandbox_pb2 as pb
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from areal_judge.judge.dispatch.meters import Readiness
from areal_judge.judge.dispatch.values import RefusedError
from areal_judge.server.handlers import SandboxHandlers

MAX_BODY_BYTES = 16 << 20  # as the gRPC side
_OPEN = frozenset({"/healthz", "/readyz"})  # a probe holds no secret
_THREAD_ABOVE_BYTES = 256 << 10  # bodies this large are read beside the event loop
_LINES = "application/x-ndjson"

HTTP_STATUS: Mapping[int, int] = {
    pb.SANDBOX_STATUS_CANCELLED: 499,
    pb.SANDBOX_STATUS_DEADLINE_EXCEEDED: 504,
    pb.SANDBOX_STATUS_REJECTED_TIER: 412,
    pb.SANDBOX_STATUS_REJECTED_OVERLOAD: 429,
    pb.SANDBOX_STATUS_INVALID_REQUEST: 400,
    pb.SANDBOX_STATUS_GOLD_ERROR: 422,
    pb.SANDBOX_STATUS_SANDBOX_ERROR: 503,
}
"""Of judgements and executions without a score; all others are 200."""
MATH_STATUS: Mapping[int, int] = {pb.MATH_STATUS_GOLD_UNPARSEABLE: 422, pb.MATH_STATUS_ERROR: 503}

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")


@dataclass(frozen=True)
class HttpCall:
    """One RPC of the contract."""

    path: str
    request: type[Message]
    streams: bool
    answer: Callable[..., Any]  # of `SandboxHandlers`


def calls_of(handlers: SandboxHandlers) -> tuple[HttpCall, ...]:
    """The route table: every RPC of the Sandbox service, by its name in snake case."""
    calls = []
    for method in pb.DESCRIPTOR.services_by_name["Sandbox"].methods:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
        kind = GetMessageClass(method.input_type)
        calls.append(HttpCall(f"/v1/{name}", kind, method.client_streaming, getattr(handlers, name)))
    return tuple(calls)


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
    handlers: SandboxHandlers, readiness: Readiness, token: str, *, max_body_bytes: int = MAX_BODY_BYTES
) -> Starlette:
    """All routes over one set of handlers."""

    async def healthz(request: Request) -> Response:
        return _json({"status": "ok"}, 200)

    async def readyz(request: Request) -> Response:
        return _json({"ready": readiness.ready, "self_test": readiness.words}, 200 if readiness.ready else 503)

    routes = [Route("/healthz", healthz), Route("/readyz", readyz)]
    for call in calls_of(handlers):
        endpoint = _stream(call) if call.streams else _unary(call)
        methods = ["POST", "GET"] if not call.request.DESCRIPTOR.fields else ["POST"]
        routes.append(Route(call.path, endpoint, methods=methods))
    app = Starlette(routes=routes)
    app.add_middleware(GateLayer, token=token, max_body_bytes=max_body_bytes)
    return app


def _unary(call: HttpCall) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            asked = await _message(call.request, await request.body())
            result = await _unless_gone(request, call.answer(asked))
        except (MalformedError, DataError) as error:
            return _reply(422, str(error))
        except RefusedError as refused:
            return _reply(400, refused.message)
        if result is None:
            return Response(status_code=499)
        status = http_status(result)
        response = Response(json_of(result), status, media_type="application/json")
        if status in (429, 503):
            response.headers["Retry-After"] = str(max(1, math.ceil(getattr(result, "retry_after_ms", 0) / 1000)))
        return response

    return endpoint


def _stream(call: HttpCall) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            body = await request.body()
            asked = [await _message(call.request, line) for line in body.splitlines() if line.strip()]
        except MalformedError as error:
            return _reply(422, str(error))

        async def requests() -> AsyncIterator[Message]:
            for one in asked:
                yield one

        async def lines() -> AsyncIterator[bytes]:
            async with contextlib.aclosing(call.answer(requests())) as results:
                async for result in results:
                    yield json_of(result) + b"\n"

        return StreamingResponse(lines(), media_type=_LINES)

    return endpoint


def http_status(result: Message) -> int:
    """The HTTP status of an answer: 200 when it has a score or needs none."""
    match result:
        case pb.JudgeResult() if result.unknown_suite:
            return 404
        case pb.JudgeResult() | pb.ExecuteResult():
            return HTTP_STATUS.get(result.status, 200)
        case pb.MathResult():
            return MATH_STATUS.get(result.status, 200)
        case _:
            return 200


async def _message(kind: type[Message], body: bytes) -> Message:
    if len(body) <= _THREAD_ABOVE_BYTES:
        return message_of(kind, body)
    return await asyncio.to_thread(message_of, kind, body)


async def _unless_gone(request: Request, answer: Awaitable[T]) -> T | None:
    """The answer; None when the client disconnected, which cancels it."""
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


def _json(content: Any, status: int) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _reply(status: int, message: str) -> Response:
    response = _json({"error": message}, status)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


# ---- JSON transcoding of protobuf messages: field names as in the proto, unknown fields refused with their path
# One addition to protobuf's JSON form: a JSON object or array may stand for the bytes of a suite's `json`.


M = TypeVar("M", bound=Message)

_STEP = re.compile(r"Failed to parse (\w+) field: ")
_UNKNOWN = re.compile(r'has no field named "(.*?)" at "(.*?)"')


class MalformedError(Exception):
    """A body that is no such message; says which field."""


def message_of(kind: type[M], body: bytes) -> M:
    """Raises MalformedError for what is no JSON, no object, or no such message."""
    try:
        document = json.loads(body or b"{}", parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise MalformedError("the body is no JSON object")
    try:
        _embed_suites(document, kind.DESCRIPTOR)
        return json_format.ParseDict(document, kind())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise MalformedError(_with_path(str(error))) from None


def json_of(message: Message) -> bytes:
    """One line. Fields without presence are always there; a score only when there is one."""
    document = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _embed_suites(document: dict[str, Any], descriptor: Any) -> None:
    if descriptor.full_name == pb.Suite.DESCRIPTOR.full_name and isinstance(document.get("json"), dict | list):
        document["json"] = base64.b64encode(json.dumps(document["json"]).encode()).decode()
    for field in descriptor.fields:
        value = document.get(field.name)
        if field.type == FieldDescriptor.TYPE_MESSAGE and isinstance(value, dict):
            _embed_suites(value, field.message_type)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _with_path(said: str) -> str:
    """`limits.wall_ms: Value out of range`, of what protobuf says."""
    reason = _STEP.sub("", said).partition("\n")[0].rstrip(".")
    if unknown := _UNKNOWN.search(said):
        _root, _, parent = unknown[2].partition(".")
        return f"{parent}.{unknown[1]}: there is no such field".removeprefix(".")
    path = ".".join(_STEP.findall(said))
    return f"{path}: {reason}" if path else reason
