"""Servers of chats for measurements: our gateway over an engine that answers at once, and a bare HTTP server.

`python bench/chat_servers.py gateway --tokenizer DIR --sessions N` and `… bare` print one line of JSON when they
listen: the base URL, and the keys of the sessions. With `--front URL --dial ADDRESS` the sessions are those of a worker
that dials a gateway, which `… front` is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

import numpy as np
import orjson
from areal.gateway.core import GatewayCore
from areal.gateway.dial import Tunnel
from areal.gateway.faults import secret_of
from areal.gateway.front import Front
from areal.gateway.http import GatewayServer
from areal.gateway.session import SessionLimits
from areal.gateway.templates.template import Template
from areal.gateway.tunnel import SERVICE_NAME, Tunnels
from areal.net.http_server import HttpServer
from areal.net.server import GrpcServer
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import gateway_pb2_grpc as rpc
from areal.values.generation import GenerationResult, Ids, OnTokens, Sampling, TokenSpan, as_ids
from areal.workflow.tokenizer import Tokenizer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

ANSWER = 64  # tokens
PROMPT = 1_000
TOKEN = "bench"
OWNER = "worker-0.bench"
_PIECES = 8  # in which an answer comes
_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


class AtOnce:
    """An engine of no cost: 63 tokens of text and an end. See `areal.gateway.http.Owner`."""

    sampling = Sampling(max_new_tokens=ANSWER)

    def __init__(self, tokenizer: Tokenizer) -> None:
        said = tokenizer.encode("an answer of the engine that costs nothing " * 20, special=False)[: ANSWER - 1]
        self._ids = as_ids([*said.tolist(), tokenizer.end_id])
        self._logprobs = np.full(ANSWER, -1.0, "<f4")
        self._result = GenerationResult(self._ids, self._logprobs, (TokenSpan(0, ANSWER, "0.f1", "null"),))

    async def generate(
        self, turn: int, ids: Ids, sampling: Sampling, draw: int, on_tokens: OnTokens
    ) -> GenerationResult:
        """See `Owner.generate`."""
        size = ANSWER // _PIECES
        for start in range(0, ANSWER, size):
            on_tokens(self._ids[start : start + size], self._logprobs[start : start + size])
        return self._result


async def serve_gateway(directory: Path, sessions: int, front: str | None, dial: str) -> None:
    """Our gateway, with sessions that live as long as it does: at the worker itself, or behind a front."""
    tokenizer = Tokenizer.from_dir(directory)
    owner = None if front is None else OWNER
    gateway = GatewayCore(Template(tokenizer), secret=secret_of(TOKEN), clock=time.time, owner=owner)
    server = GatewayServer(gateway, tokenizer)
    if front is None:
        server.start()
    else:
        server.address = front
        Tunnel(dial, TOKEN, server.app(), owner=OWNER).start()
    engine, limits = AtOnce(tokenizer), SessionLimits(ANSWER, 32_768, 256)
    opened = [server.open(f"0.{number}", engine, limits, lives_s=86_400) for number in range(sessions)]
    places = [[access.base_url, access.api_key] for access in opened]
    print(json.dumps({"base_url": server.address, "places": places}), flush=True)
    await asyncio.Event().wait()


async def serve_front() -> None:
    """The gateway role, without the job around it."""
    waits, metrics = WaitRegistry("gateway-0"), RoleMetrics("gateway", "bench")
    tunnels = Tunnels(waits, metrics.gauge("areal_gateway_workers"))
    grpc = GrpcServer("gateway-0", TOKEN, waits=waits, progress=ProgressCounter())
    grpc.add(rpc.add_GatewayServicer_to_server, tunnels, SERVICE_NAME)
    address = f"127.0.0.1:{await grpc.start(0)}"
    app = Front(tunnels, secret=secret_of(TOKEN), metrics=metrics, clock=time.time).app()
    url = f"http://127.0.0.1:{HttpServer(app, '127.0.0.1', 0, grace_s=1).start()}"
    print(json.dumps({"base_url": url, "address": address, "places": []}), flush=True)
    await asyncio.Event().wait()


async def serve_bare() -> None:
    """One answer to every chat, of the gateway's size; with ids and log-probabilities for those who ask."""
    said = "an answer of the engine that costs nothing " * 6
    choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
    body = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}
    body["usage"] = {"prompt_tokens": PROMPT, "completion_tokens": ANSWER, "total_tokens": PROMPT + ANSWER}
    told = [{"token": "a", "logprob": -1.0, "bytes": None, "top_logprobs": []}] * ANSWER
    more = {**choice, "logprobs": {"content": told}, "token_ids": [7] * ANSWER}
    plain = orjson.dumps(body)
    with_ids = orjson.dumps({**body, "prompt_token_ids": [7] * PROMPT, "choices": [more]})

    async def chat(request: Request) -> Response:
        wanted = await request.body()
        return Response(with_ids if b"return_token_ids" in wanted else plain, media_type="application/json")

    async def health(request: Request) -> Response:
        return Response()

    routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/health", health)]
    server = HttpServer(Starlette(routes=routes), "127.0.0.1", 0, grace_s=1)
    base_url = f"http://127.0.0.1:{server.start()}/v1"
    print(json.dumps({"base_url": base_url, "places": []}), flush=True)
    await asyncio.Event().wait()


def write_tokenizer(directory: Path, texts: list[str]) -> None:
    """A byte-level BPE tokenizer of 4,096 tokens, learnt from texts, with a template in the style of ChatML."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4096, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    marks = ("<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in marks])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": marks[1], "chat_template": _TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    size, end = tokenizer.get_vocab_size(with_added_tokens=True), tokenizer.token_to_id(marks[1])
    (directory / "config.json").write_text(json.dumps({"vocab_size": size, "eos_token_id": end}))


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("what", choices=["gateway", "front", "bare"])
    made.add_argument("--tokenizer", type=Path)
    made.add_argument("--sessions", type=int, default=0)
    made.add_argument("--front")
    made.add_argument("--dial", default="")
    given = made.parse_args()
    if given.what == "gateway":
        asyncio.run(serve_gateway(given.tokenizer, given.sessions, given.front, given.dial))
    else:
        asyncio.run(serve_bare() if given.what == "bare" else serve_front())


if __name__ == "__main__":
    main()
