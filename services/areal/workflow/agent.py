"""Built-in workflow `agent`: a program that was written against OpenAI's or Anthropic's API.

It makes its calls to a base URL of its own for each episode; what the model sampled for it is what is trained. The
agent returns or posts the episode's reward and never holds the arrays.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import httpx

from areal.errors import ConfigError, DataError
from areal.tls import https_client
from areal.workflow.base import Engine, Outcome, RolloutWorkflow
from areal.workflow.episode import Episode
from areal.workflow.recipe import agents_of

# HTTP transport with retries: a request whose connection breaks before an answer begins is sent again.

_PAUSES_S = (0.1, 0.5, 1.0, 2.0, 4.0)  # a gateway is back within seconds, and listened for meanwhile
_RETRY = "x-stainless-retry-count"


class AskingAgain(httpx.AsyncBaseTransport):
    """See above. `transport` sends the requests."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request until an answer begins, some times. Raises httpx.TransportError."""
        for retry, pause_s in enumerate(_PAUSES_S, 1):
            try:
                return await self._transport.handle_async_request(request)
            except (httpx.NetworkError, httpx.RemoteProtocolError):
                if not isinstance(request.stream, httpx.ByteStream):
                    raise
            await asyncio.sleep(pause_s)
            request.headers[_RETRY] = str(retry)
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Close its connections."""
        await self._transport.aclose()


RunAgent = Callable[..., Awaitable[float | Outcome | None]]
_SHAPE = "async def run(self, data, *, base_url, api_key, **extra) -> float"


class AgentWorkflow(RolloutWorkflow):
    """Runs `run(row, base_url=…, api_key=…, http_client=…)` and trains what the model sampled for it."""

    name = "agent"

    def __init__(self, run: RunAgent) -> None:
        super().__init__()
        self._run = run

    async def arun_episode(self, engine: Engine, row: dict[str, Any]) -> Episode | None:
        """One sequence for each branch of the agent's conversation, all with the reward that it returned or posted."""
        transport = AskingAgain(httpx.AsyncHTTPTransport(verify=https_client()))
        async with engine.session() as session, httpx.AsyncClient(transport=transport, timeout=None) as client:
            run = self._run(row, base_url=session.base_url, api_key=session.api_key, http_client=client)
            return await session.episode(await _until(session.over(), run))


async def _until(over: Awaitable[None], run: Awaitable[Any]) -> Any:
    """What `run` returns; None when it is ended because `over` came first."""
    watching = asyncio.ensure_future(over)
    limit = asyncio.timeout(None)

    def end(watched: asyncio.Future[None]) -> None:
        if not watched.cancelled():
            limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with limit:  # which cancels this task, so that its stack is the agent's
            watching.add_done_callback(end)
            try:
                return await run
            finally:
                watching.remove_done_callback(end)
    except TimeoutError:
        if not limit.expired():
            raise
        return None
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def agent_of(module: ModuleType | None, name: str) -> RunAgent:
    """The recipe's agent called `name`, made where it is a class. Raises ConfigError."""
    known = agents_of(module) if module is not None else {}
    if name not in known:
        raise ConfigError(
            f"rollout.agent.run {name!r} is no agent of the recipe; it has {', '.join(sorted(known)) or 'none'}",
            fix=f"define a class with `{_SHAPE}`",
        )
    found = known[name]
    if inspect.iscoroutinefunction(found):
        return found  # type: ignore[no-any-return]
    if inspect.isclass(found):
        try:
            found = found()
        except Exception as error:
            raise DataError(
                f"agent {name} can't be made: {type(error).__name__}: {error}", fix="give its constructor no arguments"
            ) from error
    return found.run  # type: ignore[no-any-return]
