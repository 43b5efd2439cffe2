"""An engine that makes tokens of nothing: SGLang's HTTP subset without a model, to measure everything around one.

A running request gets one token each `--step` seconds; `--max-running` run at once, the others wait. Each token is id 7
with log-probability −1, so the canary of any version passes.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

TOKEN_ID, LOGPROB = 7, -1.0


@dataclass(eq=False)
class Running:
    """One request."""

    rid: str
    index: int
    limit: int
    call: asyncio.Queue[tuple[Running, dict[str, Any] | None]]
    made: int = 0
    spans: list[dict[str, Any]] = field(default_factory=list)


class NullEngine:
    """State of the engine; one task steps it."""

    def __init__(self, version: str, max_running: int, step_s: float, interval: int) -> None:
        self.version = version
        self.path = ""
        self._max_running = max_running
        self._step_s = step_s
        self._interval = interval
        self._waiting: deque[Running] = deque()
        self._running: dict[str, Running] = {}
        self._paused = False

    async def step_for_ever(self) -> None:
        """One token for every running request, again and again."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self._step_s, loop.time())
            await asyncio.sleep(due - loop.time())
            if not self._paused:
                self._step()

    def _step(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            request = self._waiting.popleft()
            self._running[request.rid] = request
        for request in list(self._running.values()):
            if not request.spans or request.spans[-1]["version"] != self.version:
                request.spans.append({"version": self.version, "start": request.made, "end": request.made})
            request.made += 1
            request.spans[-1]["end"] = request.made
            if request.made >= request.limit:
                self._end(request, {"type": "length", "length": request.made})
            elif request.made % self._interval == 0:
                request.call.put_nowait((request, None))

    def _end(self, request: Running, finish: dict[str, Any]) -> None:
        self._running.pop(request.rid, None)
        request.call.put_nowait((request, finish))

    def abort(self, rids: list[str] | None) -> None:
        """End requests early, or all."""
        chosen = None if rids is None else set(rids)
        gone = [item for item in self._waiting if chosen is None or item.rid in chosen]
        self._waiting = deque(item for item in self._waiting if not (chosen is None or item.rid in chosen))
        gone += [item for item in self._running.values() if chosen is None or item.rid in chosen]
        for request in gone:
            self._end(request, {"type": "abort", "message": "Aborted"})

    # ---- routes

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        if not body.get("stream"):  # the canary
            scored = [[None if k == 0 else LOGPROB, token, None] for k, token in enumerate(body["input_ids"])]
            return web.json_response({"output_ids": [], "meta_info": {"input_token_logprobs": scored}})
        call: asyncio.Queue[tuple[Running, dict[str, Any] | None]] = asyncio.Queue()
        pairs = zip(body["rid"], body["sampling_params"], strict=True)
        mine = [Running(rid, index, params["max_new_tokens"], call) for index, (rid, params) in enumerate(pairs)]
        self._waiting.extend(mine)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        left = len(mine)
        try:
            while left:
                news = [await call.get()]
                while not call.empty():
                    news.append(call.get_nowait())
                left -= sum(finish is not None for _, finish in news)
                await response.write(b"".join(self._chunk(item, finish) for item, finish in news))
            await response.write(b"data: [DONE]\n\n")
        finally:
            if left:
                self.abort([item.rid for item in mine])
        return response

    def _chunk(self, item: Running, finish: dict[str, Any] | None) -> bytes:
        meta = {
            "id": item.rid,
            "finish_reason": finish,
            "weight_version": self.version,
            "weight_versions": item.spans,
            "output_token_logprobs": [[LOGPROB, TOKEN_ID, None]] * item.made,
        }
        answer = {"index": item.index, "output_ids": [TOKEN_ID] * item.made, "meta_info": meta}
        return b"data: " + orjson.dumps(answer) + b"\n\n"

    async def aborted(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        self.abort(None if body.get("abort_all") else body.get("rids") or [body["rid"]])
        return web.Response()

    async def paused(self, request: web.Request) -> web.Response:
        self._paused = True
        return web.json_response({"status": "ok"})

    async def continued(self, request: web.Request) -> web.Response:
        self._paused = False
        return web.json_response({"status": "ok"})

    async def loaded(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        self.version, self.path = body["weight_version"], body["model_path"]
        return web.json_response({"success": True, "message": ""})

    async def info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": self.path, "weight_version": self.version})

    async def checked(self, request: web.Request) -> web.Response:
        """It keeps no tensor: the one that is published counts as rounded, which has no checksum."""
        return web.json_response({"ranks": [{"checksums": {"w": ""}}]})

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--port", type=int, required=True)
    made.add_argument("--weight-version", required=True)
    made.add_argument("--max-running", type=int, required=True)
    made.add_argument("--step", type=float, required=True)
    made.add_argument("--interval", type=int, required=True)
    given = made.parse_args()
    engine = NullEngine(given.weight_version, given.max_running, given.step, given.interval)
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/generate", engine.generate)
    app.router.add_post("/abort_request", engine.aborted)
    app.router.add_post("/pause_generation", engine.paused)
    app.router.add_post("/continue_generation", engine.continued)
    app.router.add_post("/update_weights_from_disk", engine.loaded)
    app.router.add_post("/weights_checker", engine.checked)
    app.router.add_get("/model_info", engine.info)
    app.router.add_get("/health", engine.health)

    async def stepping(_app: web.Application) -> None:
        _app["stepper"] = asyncio.create_task(engine.step_for_ever())

    app.on_startup.append(stepping)
    web.run_app(app, host="127.0.0.1", port=given.port, print=None, handle_signals=True)


if __name__ == "__main__":
    main()
