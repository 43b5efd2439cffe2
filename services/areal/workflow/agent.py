"""Built-in workflow `agent`: a program of the recipe that was written against OpenAI's chat API.

The recipe's object makes its calls to a base URL of its own for each episode; what the model sampled for it is what is
trained. The agent returns the episode's reward and never holds the arrays.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import ModuleType
from typing import Any, Protocol

import httpx

from areal.errors import ConfigError, DataError
from areal.workflow.base import Engine, RolloutWorkflow
from areal.workflow.branches import Node, branches_of
from areal.workflow.episode import Episode

log = logging.getLogger(__name__)

RunAgent = Callable[..., Awaitable[float]]
_SHAPE = "async def run(self, data, *, base_url, api_key, **extra) -> float"


class AgentSession(Protocol):
    """One episode's base URL. Both are good until the session ends."""

    @property
    def base_url(self) -> str:
        """Of OpenAI's API, with `/v1`."""

    @property
    def api_key(self) -> str:
        """Opens this session only."""

    async def end(self) -> tuple[Node, ...]:
        """End it and get what was sampled; later calls are answered 410."""


class SessionEngine(Engine, Protocol):
    """An engine whose episode can have a base URL."""

    def session(self) -> AbstractAsyncContextManager[AgentSession]:
        """Open a session; it ends with the context at the latest."""


class AgentWorkflow(RolloutWorkflow):
    """Runs `run(row, base_url=…, api_key=…, http_client=…)` and trains what the model sampled for it."""

    name = "agent"

    def __init__(self, run: RunAgent) -> None:
        super().__init__()
        self._run = run

    async def arun_episode(self, engine: Engine, row: dict[str, Any]) -> Episode | None:
        """One sequence for each branch of the agent's conversation, all with the reward that it returned."""
        opened: SessionEngine = engine  # type: ignore[assignment]  # the worker's engine is one
        async with opened.session() as session, httpx.AsyncClient(verify=False, timeout=None) as client:  # loopback
            reward = await self._run(row, base_url=session.base_url, api_key=session.api_key, http_client=client)
            nodes = await session.end()
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            raise DataError(f"the agent returned {reward!r}", fix="return the episode's reward as a finite number")
        branches = branches_of(nodes, float(reward))
        if branches.orphans:
            log.info(
                "%d of an agent's %d answers were asked for again and are not trained", branches.orphans, len(nodes)
            )
        return branches.episode


def agents_of(module: ModuleType) -> dict[str, Any]:
    """What a recipe defines that can be an agent: an async function, or a class or object with an async `run`."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", module.__name__) == module.__name__
        and (inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(getattr(value, "run", None)))
    }


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
