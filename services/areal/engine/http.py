"""The HTTP face: `/generate` as SGLang answers it, single, batched and streamed.

Owns the way between a call and a subscription. A client that disconnects cancels its requests. Chunks of all
requests that moved in a step leave in one write.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from areal.engine.control import add_control_routes
from areal.engine.embedded import Subscription, TorchEngine
from areal.engine.info import add_info_routes
from areal.engine.replies import error_reply, generate_reply
from areal.engine.request import BadRequest, Output, parse_generate

# Bearer-key authorisation of the engine's HTTP API, as one ASGI layer with SGLang's rules.

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = frozenset({"/health", "/health_generate", "/ready", "/metrics"})
CONTROL = frozenset(
    {"/abort_request", "/pause_generation", "/continue_generation", "/update_weights_from_disk", "/begin_weight_update"}
    | {"/end_weight_update", "/update_weight_version", "/weights_checker", "/flush_cache"}
)


def permitted(path: str, bearer: str, api_key: str | None, admin_key: str | None) -> bool:
    """Whether a call of `path` with this bearer token may pass."""
    if path in OPEN:
        return True
    wanted = (admin_key or api_key) if path in CONTROL else api_key
    return wanted is None or hmac.compare_digest(bearer.encode(), wanted.encode())


class BearerLayer:
    """Answers 401 to every HTTP call that is not permitted."""

    def __init__(self, app: App, api_key: str | None, admin_key: str | None) -> None:
        self._app = app
        self._api_key = api_key
        self._admin_key = admin_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            bearer = headers.get(b"authorization", b"").decode("latin-1").removeprefix("Bearer ")
            if not permitted(scope["path"], bearer, self._api_key, self._admin_key):
                body = orjson.dumps({"error": "Unauthorized"})
                start = {"type": "http.response.start", "status": 401}
                await send({**start, "headers": [(b"content-type", b"application/json")]})
                await send({"type": "http.response.body", "body": body})
                return
        await self._app(scope, receive, send)


def create_app(engine: TorchEngine, *, api_key: str | None = None, admin_key: str | None = None) -> FastAPI:
    """All routes over one engine."""
    app = FastAPI(title="areal embedded engine", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(BearerLayer, api_key=api_key, admin_key=admin_key)
    add_control_routes(app, engine)
    add_info_routes(app, engine)

    @app.post("/generate")
    async def generate(request: Request) -> Response:
        try:
            body = orjson.loads(await request.body())
            requests, batch = parse_generate(body, engine.limits)
            subscription = engine.submit(requests)
        except orjson.JSONDecodeError as error:
            return answer(error_reply(f"the body is not JSON: {error}"), 400)
        except (BadRequest, TypeError, ValueError) as error:
            return answer(error_reply(str(error)), 400)
        if requests[0].stream:
            return StreamingResponse(_events(engine, subscription, batch), media_type="text/event-stream")
        return await _whole(engine, subscription, batch, request)

    return app


def answer(content: Any, status: int = 200) -> Response:
    """A JSON response."""
    return Response(orjson.dumps(content), status, media_type="application/json")


async def _events(engine: TorchEngine, subscription: Subscription, batch: bool) -> AsyncIterator[bytes]:
    """Server-sent events: each has all tokens so far, or where asked for those that none before had; the text of those
    comes with the last. Items of a batch carry their index.
    """
    index = {request.rid: number for number, request in enumerate(subscription.requests)}
    told = dict.fromkeys(index, 0)
    try:
        while outputs := await subscription.next():
            chunks = []
            for output in outputs:
                rid = output.request.rid
                reply = generate_reply(output, subscription.received_s, told[rid])
                if output.request.increments:
                    told[rid] = len(output.output_ids)
                if batch:
                    reply["index"] = index[rid]
                chunks.append(b"data: " + orjson.dumps(reply) + b"\n\n")
            yield b"".join(chunks)
        yield b"data: [DONE]\n\n"
    finally:
        engine.release(subscription)


async def _whole(engine: TorchEngine, subscription: Subscription, batch: bool, request: Request) -> Response:
    """The final outputs, in the order of the requests."""
    collected: dict[str, Output] = {}

    async def collect() -> None:
        while outputs := await subscription.next():
            collected.update((output.request.rid, output) for output in outputs)

    collecting = asyncio.ensure_future(collect())
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((collecting, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not collecting.done():
            collecting.cancel()
        engine.release(subscription)
    if not collecting.done() or collecting.cancelled():
        return Response(status_code=499)
    replies = []
    for item in subscription.requests:
        output = collected[item.rid]
        status = (output.finish or {}).get("status_code")
        if status is not None:
            return answer(error_reply(output.finish["message"] if output.finish else ""), status)
        replies.append(generate_reply(output, subscription.received_s))
    return answer(replies if batch else replies[0])


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
