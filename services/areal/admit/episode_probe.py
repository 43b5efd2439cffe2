"""Dry run of a job's own workflow or agent: a few episodes whose answers come from a script instead of a model.

Called in the recipe's probing process. Sessions of agents are served on loopback by the gateway's own code; their
commands end with their episodes. Judges no reward: an episode fails by an exception, or by breaking token truth.
"""

import asyncio
import contextlib
import json
import secrets
import shutil
import time
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from areal.admit.recipe_probe import DryRun, away
from areal.errors import ArealError, ConfigError, DataError, line_in
from areal.gateway.core import GatewayCore
from areal.gateway.http import GatewayServer
from areal.gateway.session import SessionLimits
from areal.gateway.templates.template import Template
from areal.spec.job import JobSpec
from areal.spec.rollout import AGENT, AgentBlock
from areal.values.generation import GenerationRequest, GenerationResult, Ids, OnTokens, Sampling, TokenSpan, as_ids
from areal.values.images import Image
from areal.workflow.agent import AgentWorkflow, agent_of
from areal.workflow.base import Outcome, Prompt, RolloutWorkflow, episode_of, sampling_of
from areal.workflow.branches import SessionEnding
from areal.workflow.command import CommandAgent
from areal.workflow.episode import Episode, RejectedError, check_episode
from areal.workflow.recipe import Recipe, agents_of
from areal.workflow.rlvr import prompt_of
from areal.workflow.tokenizer import Tokenizer

_MOST_CALLS = 64  # of one episode; a script never makes an agent's search end
_LIVES_S = 3600.0  # a session's key; its episode ends it long before

AnswerSource = Callable[[Ids, Sampling], Awaitable[Sequence[int]]]  # The tokens that continue a prompt's

Score = Callable[[dict[str, Any]], Awaitable[float]]
"""The reward of one item: prompt, completion, the tokens of both, and the row."""


class OutsideRunError(ConfigError):
    """An episode needs what exists in a run only."""

    def __init__(self, message: str) -> None:
        super().__init__(message, fix="play the job: areal run JOB algorithm.maxSteps=1")


class TrialEngine:
    """See `areal.workflow.base.Engine`: one episode outside of a run, each answer by `reply`. Also a session's owner.

    `turns` are the prompts and answers so far, in tokens; `seconds` what answers and rewards took in all. Without a
    `server` it has no sessions.
    """

    def __init__(
        self, spec: JobSpec, tokenizer: Tokenizer, reply: AnswerSource, score: Score, server: GatewayServer | None
    ) -> None:
        self.tokenizer = tokenizer
        self.sampling = sampling_of(spec.rollout.sampling)
        self.turns: list[tuple[Ids, Ids]] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._spec, self._reply, self._score, self._server = spec, reply, score, server

    def prompt(self, row: Mapping[str, Any]) -> Prompt:
        """See `Engine.prompt`."""
        return prompt_of(row, self.tokenizer, chat_template=self._spec.rollout.chat_template)

    async def agenerate(self, request: GenerationRequest) -> GenerationResult:
        """See `Engine.agenerate`."""
        sampling, ids = request.sampling or self.sampling, as_ids(request.input_ids)
        room = min(sampling.max_new_tokens, self._spec.rollout.max_sample_tokens - len(ids))
        if room <= 0 and not self.turns:
            raise RejectedError(f"a prompt of {len(ids)} tokens leaves no room", fix="raise rollout.maxSampleTokens")
        return await self._answer(ids, sampling, max(0, room))

    async def generate(
        self, turn: int, ids: Ids, sampling: Sampling, draw: int, on_tokens: OnTokens, images: tuple[Image, ...] = ()
    ) -> GenerationResult:
        """See `areal.gateway.http.Owner.generate`."""
        return await self._answer(ids, sampling, sampling.max_new_tokens)

    async def _answer(self, ids: Ids, sampling: Sampling, room: int) -> GenerationResult:
        if len(self.turns) >= _MOST_CALLS:
            raise OutsideRunError(f"it asks for more than {_MOST_CALLS} answers")
        with self._timed("answers"):
            made = as_ids(list(await self._reply(ids, sampling))[:room])
        self.turns.append((ids, made))
        spans = (TokenSpan(0, len(made), "0.f1", "trial"),) if len(made) else ()
        ended = len(made) < room or (len(made) and int(made[-1]) in self.tokenizer.eos_ids)
        return GenerationResult(made, np.full(len(made), -0.5, "<f4"), spans, "stop" if ended else "length")

    async def score(self, **item: Any) -> float:
        """See `Engine.score`."""
        with self._timed("rewards"):
            return await self._score(item)

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - began

    @contextlib.asynccontextmanager
    async def session(self) -> "AsyncIterator[_Session]":
        """See `Engine.session`."""
        if self._server is None:
            raise OutsideRunError("a trial has no gateway for agents")
        opened = _Session(self, self._server, self._spec)
        try:
            yield opened
        finally:
            await opened.end()

    def box(self, **wanted: Any) -> NoReturn:
        """See `Engine.box`."""
        raise OutsideRunError("it works in a sandbox's box")


def scripted(tokenizer: Tokenizer, answer: str) -> AnswerSource:
    """The same text each time, and an end token where the tokenizer has one."""
    ids = [*tokenizer.encode(answer, special=False).tolist(), *sorted(tokenizer.eos_ids)[:1]]

    async def reply(prompt: Ids, sampling: Sampling) -> list[int]:
        return ids

    return reply


class _Session:
    """See `areal.workflow.base.AgentSession`."""

    def __init__(self, engine: TrialEngine, server: GatewayServer, spec: JobSpec) -> None:
        self._over, self._server, self._name = asyncio.Event(), server, secrets.token_hex(4)
        self._ending: SessionEnding | None = None
        calls = (spec.rollout.agent or AgentBlock()).max_calls
        limits = SessionLimits(spec.rollout.sampling.max_new_tokens, spec.rollout.max_sample_tokens, calls)
        access = server.open(self._name, engine, limits, lives_s=_LIVES_S, on_end=self._over.set)
        self.base_url, self.api_key = access.base_url, access.api_key

    async def over(self) -> None:
        await self._over.wait()

    async def end(self) -> SessionEnding:
        if self._ending is None:
            self._ending = self._server.close(self._name, "the episode is over")
        return self._ending

    async def episode(self, reward: float | Outcome | None = None) -> Episode:
        return episode_of(await self.end(), reward)


def dry_run(recipe: Recipe | None, spec: JobSpec, item: Mapping[str, Any], score: Score) -> DryRun:
    """Play an episode for each of the script's answers.

    Args:
        item: a dataset's `row`, its `place`, its `right` answer or None; the directories of `tokenizer` and `model`.

    Raises:
        DataError: every episode failed, though one had the right answer, or before it asked for any.
    """
    workflow = _workflow(recipe, spec)
    if workflow is None:
        return DryRun()
    tokenizer = Tokenizer.from_dir(Path(item["tokenizer"]), model_dir=Path(item["model"]), job=spec.model)
    what = "agent" if isinstance(workflow, AgentWorkflow) else f"workflow {spec.rollout.workflow}"
    known = {"right": item["right"]} if isinstance(item["right"], str) else {}
    given: list[str] = []
    failed: list[str] = []
    asked = 0
    for kind, answer in {**known, "wrong": "I don't know.", "empty": ""}.items():
        try:
            rewards, calls = asyncio.run(_episode(workflow, spec, tokenizer, answer, item["row"], score))
            given.append(f"{kind} answers {rewards}")
            asked += calls
        except OutsideRunError as error:
            return DryRun(unseen=f"{what}: {error.message}")
        except TimeoutError:
            return DryRun(unseen=f"{what}: an episode computes for long, or waits for a service")
        except _Failure as failure:
            if why := away(failure.trace):
                return DryRun(unseen=f"{what}: {why}")
            asked += failure.calls
            failed.append(f"{_placed(recipe, failure)} (for {item['place']}, each answer {answer!r:.40})")
    if failed and not given and (known or not asked):
        raise DataError(f"{what}: {failed[0]}", fix="correct it: an episode that fails trains nothing")
    return DryRun(tuple(given), f"{what}: {failed[0]}" if failed else "")


class _Failure(Exception):
    def __init__(self, error: BaseException, calls: int) -> None:
        self.trace = "".join(traceback.format_exception(error))
        self.words = error.message if isinstance(error, ArealError) else f"{type(error).__name__}: {error}"
        self.calls = calls


async def _episode(
    workflow: RolloutWorkflow, spec: JobSpec, tokenizer: Tokenizer, answer: str, row: Mapping[str, Any], score: Score
) -> tuple[str, int]:
    """One episode: the rewards of its sequences in words, and how often it asked. Raises _Failure."""
    template = Template(tokenizer, chat_template=spec.rollout.chat_template)
    core = GatewayCore(template, secret=secrets.token_bytes(32), clock=asyncio.get_running_loop().time)
    server = GatewayServer(core, tokenizer, ignores=spec.rollout.gateway.unsupported == "ignore")
    engine = TrialEngine(spec, tokenizer, scripted(tokenizer, answer), score, server)
    if isinstance(workflow, AgentWorkflow):
        server.start()
    try:
        made = await workflow.arun_episode(engine, json.loads(json.dumps(row)))
        if made is None:
            return "none: rejected", len(engine.turns)
        check_episode(made, vocab_size=tokenizer.vocab_size)
        return ", ".join(f"{sequence.reward:g}" for sequence in made.sequences), len(engine.turns)
    except RejectedError:
        return "none: rejected", len(engine.turns)
    except (OutsideRunError, TimeoutError):
        raise
    except Exception as error:
        raise _Failure(error, len(engine.turns)) from error
    finally:
        await server.stop()


def _workflow(recipe: Recipe | None, spec: JobSpec) -> RolloutWorkflow | None:
    """The job's own workflow or agent; None for a built-in one, or one with an interpreter to itself."""
    rollout = spec.rollout
    if rollout.workflow != AGENT:
        made = recipe.workflows.get(rollout.workflow) if recipe is not None else None
        if made is None:
            return None
        try:
            return made(max_turns=rollout.max_turns)
        except TypeError:
            return made()
    agent = rollout.agent or AgentBlock()
    if agent.command is not None:  # a rule names a program that isn't there, and an agent
        return AgentWorkflow(CommandAgent(agent.command).run) if shutil.which(agent.command[0]) else None
    if agent.python is not None or recipe is None or agent.run not in agents_of(recipe.module):
        return None
    return AgentWorkflow(agent_of(recipe.module, agent.run or ""))


def _placed(recipe: Recipe | None, failure: _Failure) -> str:
    line = line_in(failure.trace, recipe.path) if recipe is not None else None
    return f"{recipe.path}:{line}: {failure.words}" if recipe is not None and line else failure.words
