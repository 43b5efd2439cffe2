"""The contract between a recipe's workflow and the worker that runs it."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from areal.errors import DataError
from areal.values.generation import GenerationRequest, GenerationResult, Ids, Sampling
from areal.values.images import Image
from areal.workflow.branches import SessionEnding, branches_of
from areal.workflow.episode import Episode
from areal.workflow.tokenizer import Tokenizer

if TYPE_CHECKING:  # it brings gRPC along
    from areal.clients.boxes import Box, BoxLimits
    from areal.spec.rollout import SamplingBlock


@dataclass(frozen=True)
class Prompt:
    """A dataset row as the model reads it."""

    text: str
    ids: Ids
    images: tuple[Image, ...] = ()  # that placeholders among the ids stand for


class AgentSession(Protocol):
    """One episode's base URL. Both are good until the session ends."""

    @property
    def base_url(self) -> str:
        """Of OpenAI's API, with `/v1`."""

    @property
    def api_key(self) -> str:
        """Opens this session only."""

    async def over(self) -> None:
        """Wait until the agent has posted its reward and ended the session."""

    async def episode(self, reward: float | Outcome | None = None) -> Episode:
        """End it: the episode of what was sampled, with this reward or the one that the agent posted.

        Later calls are answered 410. Raises DataError.
        """


class Engine(Protocol):
    """What an episode may use. One is made for each episode, so calls need no ids: seeds, floors and group affinity are
    taken care of. Its methods are safe to call concurrently."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    @property
    def sampling(self) -> Sampling:
        """The job's sampling; greedy when this episode is an evaluation."""

    def prompt(self, row: Mapping[str, Any]) -> Prompt:
        """The row's `messages`, `prompt` or `question`, tokenised (once a group), with its images."""

    async def agenerate(self, request: GenerationRequest) -> GenerationResult:
        """Sample a continuation. Survives weight swaps and lost servers: tokens once sampled stay."""

    async def score(
        self,
        *,
        prompt: str,
        completion: str,
        prompt_ids: Sequence[int] | Ids,
        completion_ids: Sequence[int] | Ids,
        row: Mapping[str, Any],
    ) -> float:
        """The reward of a completion, by the job's verifier. Raises InfraError rather than answer a false 0."""

    def session(self) -> AbstractAsyncContextManager[AgentSession]:
        """A base URL for the agents of this episode, until the context ends.

        Raises ConfigError where the job's sampling is truncated."""

    def box(
        self,
        *,
        work_s: float,
        scoring_s: float = ...,
        files: Mapping[str, bytes] | None = None,
        limits: BoxLimits | None = None,
        name: str = "",
    ) -> AbstractAsyncContextManager[Box]:
        """A sandbox for commands of this episode, for `work_s` and `scoring_s` beyond that; see `BoxClient.box`.

        Raises ConfigError where the job has no `rollout.boxes`, InfraError where there was no room in time."""


class RolloutWorkflow(ABC):
    """How one sample is made. A recipe derives from this; the job names the class by `name` or by its class name.

    One instance serves all episodes of a worker, many at once: keep the state of an episode in local variables.
    """

    name: ClassVar[str] = ""

    def __init__(self, *, max_turns: int | None = None) -> None:
        self.max_turns = max_turns

    @abstractmethod
    async def arun_episode(self, engine: Engine, row: dict[str, Any]) -> Episode | None:
        """Make sample i of group g; called once for each. None rejects it. Never block: use `asyncio.to_thread`."""

    async def aclose(self) -> None:
        """Close what all episodes shared, such as clients; called on their event loop after the last one, within half a
        second."""
        return


def sampling_of(wanted: SamplingBlock) -> Sampling:
    """How a job's tokens are drawn."""
    return Sampling(
        temperature=wanted.temperature,
        max_new_tokens=wanted.max_new_tokens,
        top_p=wanted.top_p,
        top_k=wanted.top_k,
        min_new_tokens=wanted.min_new_tokens,
        stop=tuple(wanted.stop),
        stop_token_ids=tuple(wanted.stop_token_ids),
    )


# ---- Outcome of an agent: its reward and a note, and the episode that they make of what was sampled


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """The reward, None where it was posted or forgotten, and a note that is recorded beside the episode."""

    reward: float | None
    note: str = ""


def episode_of(finished: SessionEnding, said: Any) -> Episode:
    """One sequence for each branch, all with the reward that was posted, or else the one that was returned.

    `said` is a number, an Outcome or None. Raises DataError without a reward or without a call.
    """
    outcome = said if isinstance(said, Outcome) else Outcome(said)
    reward = outcome.reward if finished.reward is None else finished.reward
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        printed = f" and printed {outcome.note!r}" if isinstance(said, Outcome) else ""
        raise DataError(
            f"the agent returned {outcome.reward!r}{printed}",
            fix="return the episode's reward as a finite number; a command prints it as its last word; or post it to "
            "rl/set_reward",
        )
    branches = branches_of(finished.nodes, float(reward))
    if branches.orphans:
        answers = len(finished.nodes)
        log.info("%d of an agent's %d answers were asked for again and are not trained", branches.orphans, answers)
    return replace(branches.episode, note=outcome.note)
