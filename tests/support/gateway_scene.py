"""One gateway with one session over a scripted engine, on loopback."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
from areal.errors import InfraError
from areal.gateway.core import Access
from areal.gateway.http import GatewayServer
from areal.workflow.generation import GenerationResult, Ids, OnTokens, Sampling, TokenSpan, as_ids
from areal.workflow.tokenizer import Tokenizer

Body = dict[str, Any]
ASK: Body = {"model": "any", "messages": [{"role": "user", "content": "q"}]}


class Engine:
    """Answers with "the" and an end, when it is let."""

    sampling = Sampling(max_new_tokens=16)

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.asked: list[tuple[Ids, Sampling, int]] = []
        self.let = asyncio.Event()
        self.let.set()
        self.rest = asyncio.Event()
        self.rest.set()
        self.fault: InfraError | None = None
        self.tokenizer = tokenizer
        self.says("the")

    def says(self, text: str) -> None:
        """What it answers from now on."""
        end = next(iter(self.tokenizer.eos_ids))
        self.ids = as_ids([*self.tokenizer.encode(text, special=False).tolist(), end])

    async def generate(
        self, turn: int, ids: Ids, sampling: Sampling, draw: int, on_tokens: OnTokens
    ) -> GenerationResult:
        self.asked.append((ids, sampling, draw))
        await self.let.wait()
        if self.fault is not None:
            raise self.fault
        logprobs = np.full(len(self.ids), -0.25, "<f4")
        on_tokens(self.ids[:1], logprobs[:1])
        await self.rest.wait()
        return GenerationResult(self.ids, logprobs, (TokenSpan(0, len(self.ids), "3.f1", "server"),))

    async def until_asked(self, times: int) -> None:
        async with asyncio.timeout(60):
            while len(self.asked) < times:  # noqa: ASYNC110
                await asyncio.sleep(0.002)  # a list has no event


class Scene:
    """One gateway with one session."""

    def __init__(self, server: GatewayServer, engine: Engine, access: Access) -> None:
        self.server, self.engine, self.access = server, engine, access
        self.client = httpx.AsyncClient(timeout=20)

    async def ask(self, body: Body | None = None, *, retry: int = 0, **how: Any) -> httpx.Response:
        url = how.pop("url", f"{self.access.base_url}/chat/completions")
        headers = {"authorization": f"Bearer {how.pop('key', self.access.api_key)}"}
        if retry:
            headers["x-stainless-retry-count"] = str(retry)
        return await self.client.post(url, json=body or ASK, headers=headers, **how)
