"""`areal try`: one row through a job's workflow and reward, answered by a text or by the job's model; no role starts.

The workflow runs in this process, so that a debugger reaches it; the reward in a process of its own, as in a run.
"""

import asyncio
import contextlib
import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from areal.admit.episode_probe import AnswerSource, Score, TrialEngine, scripted
from areal.admit.sources import Sources, sources_of
from areal.data.adapters import read_rows
from areal.data.source import source_from_spec
from areal.engine.served import served
from areal.errors import ArealError, ConfigError, DataError, ExitCode, InfraError, line_in
from areal.reward.verifier import Verifier
from areal.reward.verifiers.custom import CustomVerifier
from areal.reward.verifiers.exact import ExactVerifier
from areal.reward.verifiers.math import MathVerifier
from areal.rollout.worker.main import find_workflow, instance_of
from areal.spec import RLJob
from areal.spec.load import job_from
from areal.spec.rollout import AGENT
from areal.v1 import reward_pb2 as pb
from areal.values.generation import Ids, Sampling, as_ids
from areal.workflow.episode import check_episode
from areal.workflow.recipe import Recipe, load_recipe
from areal.workflow.tokenizer import Tokenizer
from areal.yaml_file.document import Document

_ANSWER_S = 600.0  # a large model on a CPU
_SHOWN = 2_000  # characters of a prompt or an answer


@dataclass
class Trial:
    """What came of one row. Times in seconds; `where` is the user's file and line where it failed."""

    row: str
    turns: list[dict[str, str]] = field(default_factory=list)  # prompt and answer, as the model has them
    reward: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    error: str = ""
    where: str = ""
    fix: str = ""
    traceback: str = ""


def try_command(
    document: Document, overrides: Sequence[str], *, row: int, answer: str | None, as_json: bool, console: Console
) -> int:
    """Play row `row`, the first is 1, and show what came of it; the exit code is 65 when the user's code fails."""
    job = job_from(document, overrides)
    sources = sources_of(job, document.path.absolute().parent)
    if not job.spec.is_rl or job.spec.rollout.workflow == AGENT:
        raise ConfigError(
            "areal try plays rewards and workflows: this job has neither",
            fix="look at an agent or a training on fixed rows by `areal check`, or a run with maxSteps=1",
        )
    if sources.tokenizer is None:
        raise ConfigError(
            "the job's tokenizer is not on this machine, and prompts are read with it",
            fix="name one that is: model.path=DIRECTORY, or model.tokenizer=DIRECTORY",
        )
    with contextlib.ExitStack() as stack, contextlib.redirect_stdout(sys.stderr):  # what the user's code prints
        tokenizer = Tokenizer.from_dir(sources.tokenizer, model_dir=sources.model, job=job.spec.model)
        reply = _model(tokenizer, sources, stack) if answer is None else scripted(tokenizer, answer)
        trial = asyncio.run(_play(job, sources, tokenizer, reply, row))
    if as_json:
        print(json.dumps(asdict(trial), indent=2))
    else:
        _show(trial, console)
    return int(ExitCode.DATA if trial.error else ExitCode.DONE)


def _model(tokenizer: Tokenizer, sources: Sources, stack: contextlib.ExitStack) -> AnswerSource:
    """Answers of the job's model, by the embedded engine in a process of its own."""
    if sources.model is None:
        raise ConfigError("the job's model is not on this machine", fix="give an answer: --answer TEXT")
    address = stack.enter_context(served(str(sources.model)))

    async def reply(ids: Ids, sampling: Sampling) -> list[int]:
        if tokenizer.image_shape is not None and (ids == tokenizer.image_shape.token).any():
            raise ConfigError("the prompt has images, which the model isn't shown here", fix="give --answer TEXT")
        body = {"model": "any", "prompt": ids.tolist(), "max_tokens": sampling.max_new_tokens, "return_token_ids": True}
        drawn = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        try:
            async with httpx.AsyncClient(base_url=address, timeout=_ANSWER_S) as client:
                answered = await client.post("/v1/completions", json={**body, **drawn})
                answered.raise_for_status()
        except httpx.HTTPError as error:
            said = error.response.text[:300] if isinstance(error, httpx.HTTPStatusError) else repr(error)
            raise InfraError(f"the model does not answer: {said}", fix="see what its engine printed above") from error
        return list(answered.json()["choices"][0]["token_ids"])

    return reply


async def _play(job: RLJob, sources: Sources, tokenizer: Tokenizer, reply: AnswerSource, number: int) -> Trial:
    """One episode of the row. The user's errors are in what is returned; raises what is wrong with the job."""
    recipe = load_recipe(sources.recipe) if sources.recipe else None
    place, row = _row(sources, number)
    trial, verifier = Trial(place), _verifier(job, recipe)
    workflow = instance_of(
        find_workflow(job.spec.rollout.workflow, recipe.workflows if recipe else None), job.spec.rollout.max_turns
    )
    engine = TrialEngine(job.spec, tokenizer, reply, _scored(verifier, trial), None)
    await verifier.start()
    try:
        if (episode := await workflow.arun_episode(engine, row)) is None:
            trial.error = "the workflow rejected the row"
            return trial
        check_episode(episode, vocab_size=tokenizer.vocab_size)
        trial.reward, trial.figures = episode.reward, dict(episode.figures)
    except InfraError:
        raise
    except Exception as error:
        trial.traceback = trial.traceback or "".join(traceback.format_exception(error))
        trial.error = error.message if isinstance(error, ArealError) else f"{type(error).__name__}: {error}"
        trial.fix = error.fix if isinstance(error, ArealError) else ""
        line = line_in(trial.traceback, sources.recipe) if sources.recipe is not None else None
        trial.where = f"{sources.recipe}:{line}" if line else ""
    finally:
        await verifier.stop()
        await workflow.aclose()
        trial.seconds = dict(engine.seconds)
        trial.turns = [
            {"prompt": tokenizer.decode(ids), "answer": tokenizer.decode(made)} for ids, made in engine.turns
        ]
    return trial


def _scored(verifier: Verifier, trial: Trial) -> Score:
    """Rewards by a verifier; the parts of the last one, or its traceback, go to `trial`."""

    async def score(asked: dict[str, Any]) -> float:
        item = pb.ScoreItem(
            prompt=asked["prompt"],
            completion=asked["completion"],
            prompt_ids=as_ids(asked["prompt_ids"]).tobytes(),
            completion_ids=as_ids(asked["completion_ids"]).tobytes(),
            row_json=orjson.dumps(dict(asked["row"])),
        )
        (result,) = await verifier.score([item])
        if result.HasField("fault"):
            trial.traceback = result.fault.traceback
            raise DataError(result.fault.message, fix=result.fault.fix)
        trial.parts = dict(result.verdict.figures)
        return result.verdict.score if result.HasField("verdict") else result.score

    return score


def _row(sources: Sources, number: int) -> tuple[str, dict[str, Any]]:
    """The `number`-th row of the first training source, with its place for people."""
    source = next(source for field, source in sources.dataset.named.items() if ".train" in field)
    named = source_from_spec(source, base_dir=Path("/"), recipe=sources.recipe, split="train")
    for place, row, _ in islice(read_rows(named), number - 1, None):
        return place, row
    raise ConfigError(f"the training rows end before row {number}", fix="name an earlier one: --row 1")


def _verifier(job: RLJob, recipe: Recipe | None) -> Verifier:
    """What scores; a workflow that scores itself asks none."""
    reward = job.spec.reward
    if reward.verifier == "math":
        return MathVerifier(reward.answer_field, gold_rounds=reward.gold_rounds)
    if reward.verifier in ("code", "model"):
        raise ConfigError(
            f"areal try has no verifier {reward.verifier!r}, which is a service",
            fix="programs: `areal reward judge`; a reward model: a run with maxSteps=1",
        )
    if reward.verifier is None and recipe is not None and recipe.reward is not None:
        return CustomVerifier(recipe.path, deadline_s=reward.deadline_seconds, weights=reward.weights)
    return ExactVerifier(reward.answer_field)


def _show(trial: Trial, console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("row", Text(trial.row))
    for turn in trial.turns:
        table.add_row("prompt", Text(repr(turn["prompt"][-_SHOWN:])))
        table.add_row("answer", Text(repr(turn["answer"][:_SHOWN])))
    if trial.reward is not None:
        table.add_row("reward", Text(f"{trial.reward:g}"))
    for what, named in (("parts", trial.parts), ("figures", trial.figures)):
        if named:
            table.add_row(what, Text(", ".join(f"{name} {value:g}" for name, value in named.items())))
    table.add_row("time", Text(", ".join(f"{what} {took:.3f} s" for what, took in trial.seconds.items())))
    if trial.error:
        table.add_row("error", Text(f"{trial.where}: {trial.error}" if trial.where else trial.error, style="red"))
        if trial.fix:
            table.add_row("fix", Text(trial.fix))
    console.print(table)
    if trial.traceback and trial.error:
        console.print(Text(trial.traceback.rstrip(), style="dim"), soft_wrap=True)
