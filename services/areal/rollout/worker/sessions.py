"""Sessions of this worker's episodes: what an agent asks over HTTP is generated as the episode's own.

Owns the way between a gateway's call and the episode: floors, seeds, deadlines and token truth are the episode's, so
an agent's answers are compared with what was streamed as any workflow's are. Lives on the worker's loop.
"""

from __future__ import annotations

import asyncio
import secrets
from itertools import count
from typing import Any, Protocol

from areal.errors import ArealError
from areal.gateway.core import Access, Gateway
from areal.gateway.http import GatewayServer
from areal.gateway.session import Limits
from areal.gateway.templates.template import Template
from areal.workflow.branches import Node
from areal.workflow.generation import GenerationResult, Ids, Sampling
from areal.workflow.tokenizer import Tokenizer

LIVES_S = 86_400.0  # a key's life; its episode ends it long before


class Generates(Protocol):
    """The episode, as a session sees it."""

    def generate(self, turn: int, ids: Ids, sampling: Sampling, reply: Pending, draw: int | None = None) -> None: ...

    def withdraw(self, reply: Pending) -> None: ...


class Pending:
    """One answer that a call waits for."""

    def __init__(self) -> None:
        self.future: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()

    def __call__(self, outcome: Any) -> None:
        """Deliver a result, or an ArealError to raise."""
        if self.future.done():
            return
        if isinstance(outcome, ArealError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class EpisodeOwner:
    """See `areal.gateway.http.Owner`."""

    def __init__(self, episode: Generates, sampling: Sampling) -> None:
        self.sampling = sampling
        self._episode = episode

    async def generate(self, turn: int, ids: Ids, sampling: Sampling, draw: int) -> GenerationResult:
        """See `Owner.generate`."""
        pending = Pending()
        self._episode.generate(turn, ids, sampling, pending, draw)
        try:
            return await pending.future
        except asyncio.CancelledError:
            self._episode.withdraw(pending)
            raise


class Sessions:
    """The gateway of one worker. It listens on loopback only: agents run in this worker."""

    def __init__(self, tokenizer: Tokenizer, limits: Limits, *, chat_template: bool | None) -> None:
        self._limits = limits
        template = Template(tokenizer, chat_template=chat_template)
        gateway = Gateway(template, secret=secrets.token_bytes(32), clock=asyncio.get_running_loop().time)
        self._server = GatewayServer(gateway, tokenizer)
        self._numbers = count()

    async def start(self) -> None:
        """Listen."""
        await self._server.start()

    async def stop(self) -> None:
        """Stop listening."""
        await self._server.stop()

    def open(self, what: str, episode: Generates, sampling: Sampling) -> tuple[str, Access]:
        """Begin the session of an episode; `what` names it for people."""
        name = f"{what.replace('/', '.')}.{next(self._numbers)}"  # one part of a path
        return name, self._server.open(name, EpisodeOwner(episode, sampling), self._limits, lives_s=LIVES_S)

    def close(self, name: str, reason: str) -> tuple[Node, ...]:
        """End it: what was sampled."""
        return tuple(self._server.close(name, reason))
