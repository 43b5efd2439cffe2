"""Agents and environments that run in a child interpreter, as the worker's workflows use them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from areal.errors import InfraError
from areal.workflow.agent import AgentWorkflow
from areal.workflow.base import Engine
from areal.workflow.environment import EnvironmentWorkflow
from areal.workflow.episode import Episode
from areal.workflow.interpreter.client import ChildInterpreter, ChildProcess


class HostedAgent:
    """An agent of the recipe in another Python."""

    def __init__(self, child: ChildInterpreter) -> None:
        self._child = child

    async def run(self, data: Mapping[str, Any], *, base_url: str, api_key: str, **extra: Any) -> float | None:
        """One episode: the reward that it returned."""
        process = await self._child.process()
        said: float | None = await process.call("agent", row=dict(data), base_url=base_url, api_key=api_key)
        return said


class HostedWorkflow(EnvironmentWorkflow):
    """Built-in workflow `environment`: plays what `rollout.environment` names, or lets it play."""

    name = "environment"

    def __init__(self, child: ChildInterpreter, max_turns: int | None = None) -> None:
        super().__init__(max_turns=max_turns)
        self._child = child

    async def arun_episode(self, engine: Engine, row: dict[str, Any]) -> Episode | None:
        """One episode: turn by turn, or as an agent's where the environment calls the policy itself."""
        if (await self._child.process()).calls_policy:
            return await AgentWorkflow(HostedAgent(self._child).run).arun_episode(engine, row)
        return await super().arun_episode(engine, row)

    async def make(self, row: dict[str, Any]) -> HostedEnvironment:
        """A fresh environment in the child."""
        process = await self._child.process()
        return HostedEnvironment(process, await process.call("make", row=row))


class HostedEnvironment:
    """One environment of a child interpreter. It lives and dies with the process that made it."""

    def __init__(self, process: ChildProcess, number: int) -> None:
        self._process = process
        self._number = number

    async def reset(self) -> tuple[Any, dict[str, Any]]:
        """The first observation."""
        return await self._process.call("reset", environment=self._number), {}

    async def step(self, action: str) -> tuple[Any, ...]:
        """Observation, reward, terminated, truncated, info."""
        said = await self._process.call("step", environment=self._number, action=action)
        return (*said, {})

    async def close(self) -> None:
        """Forget it there; gone with its process is as good."""
        with contextlib.suppress(InfraError):
            await self._process.call("close", environment=self._number)
