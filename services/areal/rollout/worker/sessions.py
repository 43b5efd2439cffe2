"""Sessions of this worker's episodes: what an agent asks over HTTP is generated as the episode's own.

Owns the way between a gateway's call and the episode: floors, seeds, deadlines and token truth are the episode's, so
an agent's answers are compared with what was streamed as any workflow's are. Lives on the worker's loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from areal.errors import ArealError
from areal.gateway.core import Access, Gateway
from areal.gateway.http import GatewayServer
from areal.gateway.session import Limits
from areal.gateway.templates.template import Template
from areal.workflow.branches import Finished
from areal.workflow.generation import GenerationResult, Ids, OnTokens, Sampling
from areal.workflow.tokenizer import Tokenizer

LIVES_S = 86_400.0  # a key's life; its episode ends it long before


class Generates(Protocol):
    """The episode, as a session sees it."""

    def generate(
        self,
        turn: int,
        ids: Ids,
        sampling: Sampling,
        reply: Pending,
        draw: int | None = None,
        on_tokens: OnTokens | None = None,
    ) -> None: ...

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

    async def generate(
        self, turn: int, ids: Ids, sampling: Sampling, draw: int, on_tokens: OnTokens
    ) -> GenerationResult:
        """See `Owner.generate`."""
        pending = Pending()
        self._episode.generate(turn, ids, sampling, pending, draw, on_tokens)
        try:
            return await pending.future
        except asyncio.CancelledError:
            self._episode.withdraw(pending)
            raise


class Sessions:
    """The gateway of one worker, from its first session on. It listens on loopback only: agents run in this worker."""

    def __init__(self, tokenizer: Tokenizer, limits: Limits, *, chat_template: bool | None) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._chat_template = chat_template
        self._server: GatewayServer | None = None
        self._numbers = count()

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.stop()

    def open(self, what: str, episode: Generates, sampling: Sampling, on_end: Callable[[], None]) -> tuple[str, Access]:
        """Begin the session of an episode; `what` names it for people.

        `on_end` is told when its agent has ended it with a reward.
        """
        name = f"{what.replace('/', '.')}.{next(self._numbers)}"  # one part of a path
        owner = EpisodeOwner(episode, sampling)
        return name, self._listening().open(name, owner, self._limits, lives_s=LIVES_S, on_end=on_end)

    def close(self, name: str, reason: str) -> Finished:
        """End it: what was sampled, and the reward that was posted."""
        return self._listening().close(name, reason)

    def _listening(self) -> GatewayServer:
        if self._server is None:
            template = Template(self._tokenizer, chat_template=self._chat_template)
            gateway = Gateway(template, secret=secrets.token_bytes(32), clock=asyncio.get_running_loop().time)
            self._server = GatewayServer(gateway, self._tokenizer)
            self._server.start()
        return self._server
