"""Sessions of this worker's episodes: what an agent asks over HTTP is generated as the episode's own.

Owns the way between a gateway's call and the episode: floors, seeds, deadlines and token truth are the episode's, so
an agent's answers are compared with what was streamed as any workflow's are. Calls come over loopback, or by the job's
gateways, which this dials. Lives on the worker's loop.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol

from areal.errors import ArealError, ConfigError
from areal.gateway.core import Access, GatewayCore
from areal.gateway.dial import Tunnel
from areal.gateway.http import GatewayServer
from areal.gateway.session import SessionLimits
from areal.gateway.templates.template import Template
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import WaitRegistry
from areal.tls import TrustFile
from areal.values.generation import GenerationResult, Ids, OnTokens, Sampling
from areal.values.images import Image
from areal.workflow.branches import SessionEnding
from areal.workflow.tokenizer import Tokenizer

LIVES_S = 86_400.0  # a key's life; its episode ends it long before


class Generates(Protocol):
    """The episode, as a session sees it."""

    def generate(
        self,
        turn: int,
        ids: Ids,
        sampling: Sampling,
        reply: "Pending",
        draw: int | None = None,
        on_tokens: OnTokens | None = None,
        images: tuple[Image, ...] = (),
    ) -> None: ...

    def withdraw(self, reply: "Pending") -> None: ...


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
        self, turn: int, ids: Ids, sampling: Sampling, draw: int, on_tokens: OnTokens, images: tuple[Image, ...] = ()
    ) -> GenerationResult:
        """See `Owner.generate`."""
        pending = Pending()
        self._episode.generate(turn, ids, sampling, pending, draw, on_tokens, images)
        try:
            return await pending.future
        except asyncio.CancelledError:
            self._episode.withdraw(pending)
            raise


@dataclass(frozen=True)
class Gateways:
    """The job's gateways, as a worker knows them."""

    addresses: Sequence[str]  # that it dials
    urls: Sequence[str]  # where agents call them: any of these reaches any session
    token: str
    owner: str  # this incarnation of the worker
    waits: WaitRegistry
    secret: bytes  # with which keys of sessions are signed
    trust: TrustFile | None = None  # of agents, where they call by HTTPS


@dataclass(frozen=True)
class SessionRules:
    """What sessions do of `rollout.gateway` and `rollout.chatTemplate`."""

    chat_template: bool | None = None
    ignores: bool = False  # what would change the distribution of tokens is ignored instead of refused
    first_system: bool = False  # a system message that changes is said behind what was said


class Sessions:
    """The sessions of one worker. Without `gateways` it listens itself, from its first session on, on loopback only."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: SessionLimits,
        *,
        rules: SessionRules = SessionRules(),
        gateways: Gateways | None = None,
        metrics: RoleMetrics | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._rules = rules
        self._gateways = gateways
        self._metrics = metrics
        self._server: GatewayServer | None = None
        self._tunnels: list[Tunnel] = []
        self._numbers = count()

    def start(self) -> None:
        """Dial the job's gateways, if it has any: an earlier process' agents learn so that their episodes are over.

        Raises ConfigError where the template can't do what the rules ask for.
        """
        if self._gateways is not None or self._rules.first_system:
            self._serving()

    async def stop(self) -> None:
        """Answer no more calls."""
        await asyncio.gather(*(tunnel.close() for tunnel in self._tunnels))
        if self._server is not None:
            await self._server.stop()

    def open(
        self, what: str, episode: Generates, sampling: Sampling, on_end: Callable[[], None], *, blind: bool = False
    ) -> tuple[str, Access]:
        """Begin the session of an episode; `what` names it for people.

        `on_end` is told when its agent has ended it with a reward. In a `blind` one tools answer nothing.
        """
        number = next(self._numbers)
        name = f"{what.replace('/', '.')}.{number}.{secrets.token_hex(4)}"  # one part of a path; never comes again
        owner = EpisodeOwner(episode, sampling)
        urls = self._gateways.urls if self._gateways is not None else ()
        if self._gateways is not None and self._gateways.trust is not None:
            self._gateways.trust.renew()
        address = urls[number % len(urls)] if urls else None
        limits = replace(self._limits, tool_answers=not blind)
        return name, self._serving().open(name, owner, limits, lives_s=LIVES_S, on_end=on_end, address=address)

    def close(self, name: str, reason: str) -> SessionEnding:
        """End it: what was sampled, and the reward that was posted."""
        return self._serving().close(name, reason)

    def _serving(self) -> GatewayServer:
        if self._server is None:
            template = Template(self._tokenizer, chat_template=self._rules.chat_template)
            if self._rules.first_system and (why := template.without_later_system()):
                raise ConfigError(
                    f"rollout.gateway.volatileSystem: keepFirst can't be: {why}",
                    fix="write fork, or use another template",
                )
            gateways = self._gateways
            local = asyncio.get_running_loop().time
            gateway = GatewayCore(
                template,
                secret=secrets.token_bytes(32) if gateways is None else gateways.secret,
                clock=local if gateways is None else time.time,
                owner=None if gateways is None else gateways.owner,
                first_system=self._rules.first_system,
                metrics=self._metrics,
            )
            self._server = GatewayServer(gateway, self._tokenizer, ignores=self._rules.ignores)
            if gateways is None:
                self._server.start()
                return self._server
            app = self._server.app()
            for address in gateways.addresses:
                tunnel = Tunnel(address, gateways.token, app, owner=gateways.owner, waits=gateways.waits)
                tunnel.start()
                self._tunnels.append(tunnel)
        return self._server
