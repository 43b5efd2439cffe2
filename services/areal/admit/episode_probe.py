"""Dry run of a job's own workflow or agent: a few episodes whose answers come from a script instead of a model.

Called in the recipe's probing process. Sessions of agents are served on loopback by the gateway's own code; their
commands end with their episodes. Judges no reward: an episode fails by an exception, or by breaking token truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from areal.admit.recipe_probe import DryRun, away
from areal.errors import ArealError, DataError, line_in
from areal.gateway.core import GatewayCore
from areal.gateway.http import GatewayServer
from areal.gateway.session import SessionLimits
from areal.gateway.templates.template import Template
from areal.spec.job import JobSpec
from areal.spec.rollout import AGENT, AgentBlock
from areal.values.generation import GenerationRequest, GenerationResult, Ids, OnTokens, Sampling, TokenSpan, as_ids
from areal.workflow.agent import AgentWorkflow, agent_of
from areal.workflow.base import Prompt, RolloutWorkflow
from areal.workflow.branches import SessionEnding
from areal.workflow.command import CommandAgent
from areal.workflow.episode import Episode, RejectedError, check_episode
from areal.workflow.outcome import Outcome, episode_of
from areal.workflow.prompt import prompt_of
from areal.workflow.recipe import Recipe, agents_of
from areal.workflow.tokenizer import Tokenizer

_MOST_CALLS = 64  # of one episode; a script never makes an agent's search end
_LIVES_S = 3600.0  # a session's key; its episode ends it long before

Score = Callable[[str, str, Mapping[str, Any]], float]
"""The reward of prompt, completion and row."""


class _NotHere(Exception):
    """An episode needs what a dry run hasn't."""


class ScriptedEngine:
    """See `areal.workflow.base.Engine`: every answer is the same text, cut to its room. Also a session's owner."""

    def __init__(self, spec: JobSpec, tokenizer: Tokenizer, answer: str, score: Score, server: GatewayServer) -> None:
        sampling = spec.rollout.sampling
        self.tokenizer = tokenizer
        self.sampling = Sampling(max_new_tokens=sampling.max_new_tokens)
        self.calls = 0
        self._spec = spec
        self._score = score
        self._server = server
        ends = sorted(tokenizer.eos_ids)[:1]
        self._ids = as_ids([*tokenizer.encode(answer, special=False).tolist(), *ends])

    def prompt(self, row: Mapping[str, Any]) -> Prompt:
        """See `Engine.prompt`."""
        return prompt_of(row, self.tokenizer, chat_template=self._spec.rollout.chat_template)

    async def agenerate(self, request: GenerationRequest) -> GenerationResult:
        """See `Engine.agenerate`."""
        wanted = request.sampling or self.sampling
        room = min(wanted.max_new_tokens, self._spec.rollout.max_sample_tokens - len(request.input_ids))
        if room <= 0 and not self.calls:
            raise RejectedError("the prompt leaves no room for an answer", fix="raise rollout.maxSampleTokens")
        return self._answer(max(0, room))

    async def generate(
        self, turn: int, ids: Ids, sampling: Sampling, draw: int, on_tokens: OnTokens
    ) -> GenerationResult:
        """See `areal.gateway.http.Owner.generate`."""
        return self._answer(sampling.max_new_tokens)

    def _answer(self, room: int) -> GenerationResult:
        self.calls += 1
        if self.calls > _MOST_CALLS:
            raise _NotHere(f"it asks for more than {_MOST_CALLS} answers")
        ids = self._ids[:room]
        spans = (TokenSpan(0, len(ids), "0.f1", "script"),) if len(ids) else ()
        reason = "stop" if len(ids) == len(self._ids) else "length"
        return GenerationResult(ids, np.full(len(ids), -0.5, dtype="<f4"), spans, reason)

    async def score(self, *, prompt: str, completion: str, row: Mapping[str, Any], **ids: Any) -> float:
        """See `Engine.score`."""
        return self._score(prompt, completion, row)

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[_Session]:
        """See `Engine.session`."""
        opened = _Session(self, self._server, self._spec)
        try:
            yield opened
        finally:
            await opened.end()

    def box(self, **wanted: Any) -> NoReturn:
        """See `Engine.box`."""
        raise _NotHere("it works in a sandbox's box")


class _Session:
    """See `areal.workflow.base.AgentSession`."""

    def __init__(self, engine: ScriptedEngine, server: GatewayServer, spec: JobSpec) -> None:
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
        except (_NotHere, TimeoutError) as error:
            return DryRun(unseen=f"{what}: {str(error) or 'an episode computes for long, or waits for a service'}")
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
    engine = ScriptedEngine(spec, tokenizer, answer, score, server)
    if isinstance(workflow, AgentWorkflow):
        server.start()
    try:
        made = await workflow.arun_episode(engine, json.loads(json.dumps(row)))
        if made is None:
            return "none: rejected", engine.calls
        check_episode(made, vocab_size=tokenizer.vocab_size)
        return ", ".join(f"{sequence.reward:g}" for sequence in made.sequences), engine.calls
    except RejectedError:
        return "none: rejected", engine.calls
    except (_NotHere, TimeoutError):
        raise
    except Exception as error:
        raise _Failure(error, engine.calls) from error
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
