"""Control routes: interruption, weight updates, versions, cache. Bodies and answers are SGLang's."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from areal import __version__
from areal.engine.commands import KV_CACHE, WEIGHTS, CommandReply
from areal.engine.embedded import Subscription, TorchEngine
from areal.engine.request import BadRequest, Output, error_reply, generate_reply, parse_generate
from areal.errors import ArealError, DataError


def add_control_routes(app: FastAPI, engine: TorchEngine) -> None:
    """Everything that changes the engine's state, except generating."""

    @app.post("/abort_request")
    async def abort_request(request: Request) -> Response:
        body = await _body(request)
        rid, rids = body.get("rid"), body.get("rids")  # the second is ours: many requests at once
        if not body.get("abort_all") and not rid and not isinstance(rids, list):
            return _json(error_reply("give rid, rids or abort_all"), 400)
        engine.abort(None if body.get("abort_all") else [str(rid) for rid in ([rid] if rid else rids or [])])
        return Response(status_code=200)

    @app.post("/pause_generation")
    async def pause_generation(request: Request) -> Response:
        mode = (await _body(request)).get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            return _json(error_reply(f"unknown pause mode {mode!r}"), 400)
        await engine.pause(mode)
        return _json({"message": "Generation paused successfully.", "status": "ok"})

    @app.post("/continue_generation")
    async def continue_generation(request: Request) -> Response:
        await _body(request)
        done = await engine.resume()
        if not done.success:
            return _outcome(done)
        return _json({"message": "Generation continued successfully.", "status": "ok"})

    @app.post("/release_memory_occupation")
    async def release_memory_occupation(request: Request) -> Response:
        return await _memory(request, engine.release_memory)

    @app.post("/resume_memory_occupation")
    async def resume_memory_occupation(request: Request) -> Response:
        return await _memory(request, engine.resume_memory)

    @app.post("/update_weights_from_disk")
    async def update_weights_from_disk(request: Request) -> Response:
        body = await _body(request)
        path = body.get("model_path")
        if not isinstance(path, str):
            return _json({"success": False, "message": "model_path is missing", "num_paused_requests": 0}, 400)
        version = body.get("weight_version")
        done = await engine.load(
            Path(path),
            None if version is None else str(version),
            flush_cache=body.get("flush_cache", True) is not False,
            abort_all=bool(body.get("abort_all_requests", False)),
        )
        return _json({"success": done.success, "message": done.message, "num_paused_requests": 0}, _status(done))

    @app.post("/begin_weight_update")
    async def begin_weight_update(request: Request) -> Response:
        await _body(request)
        if engine.update_open:
            return _outcome(CommandReply(False, "a weight update is open already"))
        engine.update_open = True
        engine.group.begin()
        return _outcome(CommandReply(True, "Succeeded."))

    @app.post("/end_weight_update")
    async def end_weight_update(request: Request) -> Response:
        await _body(request)
        if not engine.update_open:
            return _outcome(CommandReply(False, "no weight update is open"))
        engine.update_open = False
        return _outcome(CommandReply(True, "Succeeded."))

    @app.post("/init_weights_update_group")
    async def init_weights_update_group(request: Request) -> Response:
        body = await _body(request)
        return await _tried(engine.group.join(body), "Succeeded to initialize custom process group.")

    @app.post("/destroy_weights_update_group")
    async def destroy_weights_update_group(request: Request) -> Response:
        left = engine.group.leave(str((await _body(request)).get("group_name")))
        return _outcome(CommandReply(left, "Succeeded." if left else "The group to be destroyed does not exist."))

    @app.post("/update_weights_from_distributed")
    async def update_weights_from_distributed(request: Request) -> Response:
        body = await _body(request)
        if not engine.update_open:
            return _outcome(CommandReply(False, "no weight update is open: call /begin_weight_update first"))
        received = await _tried(engine.group.receive(body), "Succeeded.")
        version = body.get("weight_version")  # comes with the last bucket
        if version is None or received.status_code != 200:
            return received
        return _outcome(
            await engine.load_received(
                str(version),
                flush_cache=body.get("flush_cache", True) is not False,
                abort_all=bool(body.get("abort_all_requests", False)),
            )
        )

    @app.post("/update_weight_version")
    async def update_weight_version(request: Request) -> Response:
        body = await _body(request)
        version = body.get("new_version")
        if not isinstance(version, str):
            return _outcome(CommandReply(False, "new_version is missing"))
        await engine.set_version(version, abort_all=body.get("abort_all_requests", True) is not False)
        message = f"Weight version updated to {version}"
        return _json({"success": True, "message": message, "new_version": version})

    @app.api_route("/weights_checker", methods=["GET", "POST"])
    async def weights_checker() -> Response:
        try:
            checksums = await engine.checksums()
        except DataError as error:
            return _outcome(CommandReply(False, error.message))
        whole = hashlib.sha256("".join(f"{name}={checksums[name]};" for name in sorted(checksums)).encode()).hexdigest()
        ranks = [{"checksums": checksums, "per_gpu_checksum": whole, "parallelism_info": []}]
        engine_sum = hashlib.sha256(whole.encode()).hexdigest()
        return _json({"success": True, "message": "", "ranks": ranks, "per_engine_checksum": engine_sum})

    @app.api_route("/flush_cache", methods=["GET", "POST"])
    async def flush_cache(timeout: float = 0.0) -> Response:
        try:
            done = await asyncio.wait_for(engine.flush(when_idle=timeout > 0), timeout or None)
        except TimeoutError:
            done = CommandReply(False, f"requests still ran after {timeout} s")
        return Response(done.message or "Cache flushed.\n", _status(done), media_type="text/plain")


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request; nothing is an empty one."""
    raw = await request.body()
    value = orjson.loads(raw) if raw else {}
    return value if isinstance(value, dict) else {}


async def _memory(request: Request, change: Callable[[frozenset[str]], Coroutine[Any, Any, CommandReply]]) -> Response:
    """Release or resume what `tags` name, all where they name nothing."""
    tags = (await _body(request)).get("tags") or [WEIGHTS, KV_CACHE]
    if not isinstance(tags, list) or not set(map(str, tags)) <= {WEIGHTS, KV_CACHE}:
        return _json(error_reply(f"tags are {WEIGHTS} and {KV_CACHE}"), 400)
    done = await change(frozenset(map(str, tags)))
    return _json(None) if done.success else _outcome(done)


async def _tried(work: Coroutine[Any, Any, None], done: str) -> Response:
    try:
        await work
    except ArealError as error:
        return _outcome(CommandReply(False, error.message))
    return _outcome(CommandReply(True, done))


def _status(done: CommandReply) -> int:
    return 200 if done.success else 400


def _outcome(done: CommandReply) -> Response:
    return _json({"success": done.success, "message": done.message}, _status(done))


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


# ---- The HTTP face: `/generate` as SGLang answers it, single, batched and streamed


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
            return _json(error_reply(f"the body is not JSON: {error}"), 400)
        except (BadRequest, TypeError, ValueError) as error:
            return _json(error_reply(str(error)), 400)
        if requests[0].stream:
            return StreamingResponse(_events(engine, subscription, batch), media_type="text/event-stream")
        return await _whole(engine, subscription, batch, request)

    return app


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
            return _json(error_reply(output.finish["message"] if output.finish else ""), status)
        replies.append(generate_reply(output, subscription.received_s))
    return _json(replies if batch else replies[0])


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# ---- Read-only routes: health, readiness, model, load, metrics. All answer while paused


def add_info_routes(app: FastAPI, engine: TorchEngine) -> None:
    """Routes that change nothing."""
    registry = CollectorRegistry()
    registry.register(_EngineCollector(engine))

    @app.get("/health")
    @app.get("/health_generate")
    async def health() -> Response:
        return Response(status_code=200 if engine.healthy and not engine.draining else 503)

    @app.get("/ready")
    async def ready() -> Response:
        serving = engine.healthy and not engine.draining and not engine.stats.paused
        return Response(status_code=200 if serving else 503)

    @app.get("/model_info")
    async def model_info() -> Response:
        stats = engine.stats
        return _json(
            {
                "model_path": stats.model_path,
                "served_model_name": stats.model_path,
                "tokenizer_path": str(engine.options.tokenizer_path or engine.options.model_path),
                "is_generation": True,
                "weight_version": stats.weight_version,
                "architectures": [engine.config.architecture],
            }
        )

    @app.get("/server_info")
    async def server_info() -> Response:
        options = engine.options
        return _json(
            {
                "version": __version__,
                "frontend": "embedded",
                "model_path": engine.stats.model_path,
                "weight_version": engine.stats.weight_version,
                "dtype": options.dtype,
                "context_length": engine.context,
                "max_running_requests": options.max_running_requests,
                "max_total_num_tokens": engine.max_total_tokens,
                "vocab_size": engine.config.vocab,
                "stream_interval": options.stream_interval,
            }
        )

    @app.get("/v1/loads")
    async def loads() -> Response:
        stats = engine.stats
        load = {
            "dp_rank": 0,
            "num_running_reqs": stats.running,
            "num_waiting_reqs": stats.waiting,
            "num_used_tokens": stats.used_tokens,
            "token_usage": stats.used_tokens / engine.max_total_tokens,
            "max_total_num_tokens": engine.max_total_tokens,
            "max_running_requests": engine.options.max_running_requests,
            "gen_throughput": stats.gen_throughput,
            "utilization": stats.running / engine.options.max_running_requests,
        }
        return _json({"timestamp": datetime.now(UTC).isoformat(), "version": __version__, "loads": [load]})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


class _EngineCollector(Collector):
    """SGLang's metric names over the scheduler's figures."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        stats, engine = self._engine.stats, self._engine
        gauges = {
            "sglang:num_running_reqs": ("Requests in the running batch", stats.running),
            "sglang:num_queue_reqs": ("Requests that wait", stats.waiting),
            "sglang:num_used_tokens": ("Cache positions in use", stats.used_tokens),
            "sglang:token_usage": ("Share of the cache in use", stats.used_tokens / engine.max_total_tokens),
            "sglang:max_total_num_tokens": ("Cache positions there are", engine.max_total_tokens),
            "sglang:gen_throughput": ("Tokens a second", stats.gen_throughput),
        }
        counters = {
            "sglang:prompt_tokens": ("Prompt tokens received", stats.prompt_tokens),
            "sglang:generation_tokens": ("Tokens generated", stats.generated_tokens),
            "sglang:num_requests": ("Requests received", stats.requests),
            "sglang:num_aborted_requests": ("Requests aborted", stats.aborted),
            "sglang:num_retracted_reqs": ("Requests put back by a pause", stats.retracted),
        }
        labels = ["model_name", "engine_type"]
        values = [Path(engine.options.model_path).name, "embedded"]  # open to all: no path of the machine
        for kind, figures in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, (text, value) in figures.items():
                family = kind(name, text, labels=labels)
                family.add_metric(values, value)
                yield family
