"""Workflow that plays an environment: the model's answers are its actions, what it says back are the next turns.

The environment has gymnasium's two methods, over text: `reset() -> (observation, info)` and `step(action) ->
(observation, reward, terminated, truncated, info)`; plain functions run in a thread, coroutines on the loop.
Token-exact as every workflow: each turn goes on from the very ids that were sampled.
"""

import asyncio
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from areal.errors import DataError, InfraError
from areal.values.generation import GenerationRequest, Ids
from areal.workflow.base import Engine, RolloutWorkflow
from areal.workflow.episode import Episode, Transcript
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
