"""Workflow that plays an environment: the model's answers are its actions, what it says back are the next turns.

The environment has gymnasium's two methods, over text: `reset() -> (observation, info)` and `step(action) ->
(observation, reward, terminated, truncated, info)`; plain functions run in a thread, coroutines on the loop.
Token-exact as every workflow: each turn goes on from the very ids that were sampled.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from areal.errors import DataError, InfraError
from areal.values.generation import GenerationRequest, Ids
from areal.workflow.agent import AgentWorkflow
from areal.workflow.base import Engine, RolloutWorkflow
from areal.workflow.episode import Episode, Transcript
from areal.workflow.interpreter.client import ChildInterpreter, ChildProcess
from areal.workflow.tokenizer import Tokenizer


class EnvironmentWorkflow(RolloutWorkflow):
    """One episode of an environment is one sample: its reward is the sum of what the steps gave.

    A recipe derives from this and defines `make`. An episode ends when the environment does, after `max_turns` answers,
    or when the sample's token budget is used up.
    """

    @abstractmethod
    def make(self, row: dict[str, Any]) -> Any:
        """A fresh environment for one sample. The row decides how it begins, alike for all samples of a group."""

    def turn_ids(self, tokenizer: Tokenizer, observation: str, *, after_end: bool) -> Ids:
        """The ids `[tokens]` that stand between an answer and the next one; a user's turn of the chat template.

        `after_end` says that the answer holds its end token already.
        """
        return tokenizer.encode_turn(observation, after_end=after_end)

    async def arun_episode(self, engine: Engine, row: dict[str, Any]) -> Episode | None:
        """One sequence: first observation, action, observation, action, …"""
        environment = await _call(self.make, row)
        try:
            first = _first(await _call(environment.reset))
            transcript = Transcript(engine.prompt({"messages" if isinstance(first, list) else "prompt": first}).ids)
            total, turn = 0.0, 0
            while True:
                result = await engine.agenerate(GenerationRequest(transcript.ids))
                transcript.sampled(result)
                turn += 1
                if not len(result.output_ids):  # the sample's token budget is used up
                    return Episode([transcript.sequence(total)])
                action = engine.tokenizer.decode(result.output_ids)
                observation, reward, over = _step(await _call(environment.step, action))
                total += reward
                if over or turn == self.max_turns:
                    return Episode([transcript.sequence(total)])
                ended = int(result.output_ids[-1]) == engine.tokenizer.turns.end
                transcript.given(self.turn_ids(engine.tokenizer, observation, after_end=ended))
        finally:
            if close := getattr(environment, "close", None):
                await _call(close)


async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns. A lost connection is infrastructure's fault: the episode is tried again."""
    try:
        if inspect.iscoroutinefunction(function):
            return await function(*arguments)
        return await asyncio.to_thread(function, *arguments)
    except (ConnectionError, TimeoutError) as error:
        raise InfraError(f"the environment can't be reached: {type(error).__name__}: {error}") from error


def _first(given: Any) -> str | list[Any]:
    match given:
        case (str() | list() as observation, dict()):
            return observation
        case _:
            raise DataError(
                f"reset() returned {given!r:.200}",
                fix="return (observation, info): a text, or a list of messages, and a dict",
            )


def _step(given: Any) -> tuple[str, float, bool]:
    """Observation, reward, and whether the episode is over."""
    match given:
        case (str() as observation, int() | float() as reward, bool() as terminated, bool() as truncated, dict()):
            if math.isfinite(reward):
                return observation, float(reward), terminated or truncated
    raise DataError(
        f"step() returned {given!r:.200}",
        fix="return (observation, reward, terminated, truncated, info): a text, a finite number, two bools, a dict",
    )


# ---- Agents and environments that run in a child interpreter, as the worker's workflows use them


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
