"""A real client's conversations with a whole worker, and the audit of every token that came of them."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from areal.gateway.session import SessionLimits
from areal.rollout.worker.sessions import Gateways
from areal.workflow.tokenizer import Tokenizer
from areal_trainer.data.batch import columns
from areal_view.index.oracle import JournalRequest, TokenReport, TrainedSequence, compare
from support.conversing_agent import Answer, ConversingAgent
from support.redis_server import RedisServer
from support.scripted_controller import lease
from support.worker_parts import ROW, Bench

LIMITS = SessionLimits(max_new_tokens=256, max_sample_tokens=32_768, max_calls=128)


def last_said(prompt: str) -> str:
    """What the newest message of a ChatML prompt says."""
    return prompt.split("<|im_start|>")[-2].partition("\n")[2].partition("<|im_end|>")[0]


def calculate(prompt: str) -> str:
    """Calls a tool for each `a and b` of the newest message; tells what the tools said."""
    said = last_said(prompt)
    if results := re.findall(r"<tool_response>\n(.*?)\n</tool_response>", said, re.DOTALL):
        return f"sums: {', '.join(results)}"
    calls = [f'{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}' for a, b in re.findall(r"(\d+) and (\d+)", said)]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def echo(prompt: str) -> str:
    """An answer that tells which message it answers."""
    return f"heard {last_said(prompt)[:40]}"


class Client(Protocol):
    """Who converses."""

    async def run(self, base_url: str, api_key: str, texts: list[str], **cell: Any) -> list[Any]:
        """The answers to these texts, or the errors."""


@dataclass(eq=False)
class Scene:
    """One worker, one server, one client. `talk` is what its agent does in each episode."""

    root: Path
    tokenizer: Tokenizer
    redis: RedisServer
    client: Client
    answer: Answer = echo
    limits: SessionLimits = LIMITS
    server: ConversingAgent = field(default_factory=ConversingAgent)
    access: list[tuple[str, str]] = field(default_factory=list)  # base URL and key of each episode
    said: list[list[Any]] = field(default_factory=list)  # answers of each episode
    samples: int = 1  # of its group
    gateways: Gateways | None = None  # that agents call it by
    bench: Bench | None = None

    async def begin(self, texts: list[str], **cell: Any) -> None:
        """Start a group whose episodes each have a conversation of these texts."""

        async def run(data: Any, *, base_url: str, api_key: str, **extra: Any) -> float:
            self.access.append((base_url, api_key))
            self.said.append(await self.client.run(base_url, api_key, texts, **cell))
            return 1.0

        self.server.tokenizer, self.server.answer = self.tokenizer, self.answer
        self.bench = Bench(
            self.root, self.tokenizer, self.redis, agents_run=run, limits=self.limits, gateways=self.gateways
        )
        await self.bench.start(self.server)
        self.bench.controller.send(leases=[lease(0, list(range(self.samples)), ROW)])

    async def finish(self) -> list[list[Any]]:
        """Wait for all samples; returns what each conversation was told, after the audit of its tokens."""
        assert self.bench is not None
        controller = self.bench.controller
        async with asyncio.timeout(60):
            await controller.until(lambda: len(controller.done) == self.samples, timeout_s=60.0)
        report = await self.audit()
        assert report.ok, report.to_json()
        assert report.trained == report.equal
        assert report.sampled == report.equal + sum(report.untrained.values())
        return self.said

    async def converse(self, texts: list[str], **cell: Any) -> list[list[Any]]:
        """`begin` and `finish`."""
        await self.begin(texts, **cell)
        return await self.finish()

    async def audit(self) -> TokenReport:
        """What the ledger holds, as the trainer reads it, against what the server journaled."""
        assert self.bench is not None
        stored = await self.bench.stored()
        made: defaultdict[tuple[int, int], list[JournalRequest]] = defaultdict(list)
        for kept in self.server.journal.values():
            made[kept.start.key.group, kept.start.key.index].append(kept.sampled())
        report = TokenReport()
        for key, sample in stored.items():
            batch = columns([sample], self.tokenizer.vocab_size)
            mask = batch.trainable()
            parts = [slice(*pair) for pair in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]
            trained = [
                TrainedSequence(
                    batch.token_ids[part].astype("i4"),
                    batch.behaviour_logprobs[part],
                    batch.versions[part].astype("i4"),
                    mask[part],
                    1.0,
                )
                for part in parts
            ]
            report.add(compare(f"sample {key}", trained, made[key], gaps=False))
        return report

    async def end(self) -> None:
        """Stop everything."""
        if self.bench is not None:
            await self.bench.end()
