"""Every example is a valid job that somebody scores, whose recipe imports, and says how to run itself."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import httpx
import numpy as np
import pytest
from admit.admit_shapes import QWEN3_8B, QWEN3_32B, QWEN25_7B
from areal.admit.memory import memory_of
from areal.spec import Severity, check, load_job
from areal.values.generation import as_ids
from areal.workflow import EnvironmentWorkflow, GenerationResult, TokenSpan
from areal.workflow.box_tools import BoxToolsWorkflow
from areal.workflow.episode import check_episode
from areal.workflow.recipe import load_recipe

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOBS = sorted(EXAMPLES.glob("*.yaml"))
GPU_JOBS = {"qwen2.5-7b-gsm8k": (QWEN25_7B, 8), "qwen3-32b-math": (QWEN3_32B, 64), "lora-8b": (QWEN3_8B, 2)}


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_an_example_is_a_job_that_is_scored_and_says_how_to_run_it(path: Path) -> None:
    job = load_job(path)
    command = "submit" if path.stem in GPU_JOBS else "run"
    assert f"areal {command} examples/{path.name}" in path.read_text()
    if path.stem in GPU_JOBS:
        return  # rows and models from elsewhere; the next test
    if not job.spec.is_rl:
        assert not [finding for finding in check(job) if finding.severity is Severity.ERROR]
        return
    if job.spec.reward.verifier is not None:
        train = job.spec.dataset.train.jsonl
        assert train is not None
        assert train.startswith("data/digits/") or (EXAMPLES / f"{path.stem}_data.py").exists()
        return
    agent = job.spec.rollout.agent
    if agent is not None and agent.command:
        assert (EXAMPLES.parent / agent.command[-1]).exists()
        return
    if job.spec.rollout.environment is not None:
        assert (EXAMPLES / f"{path.stem}.py").exists(), "what is played"
        return
    assert job.spec.recipe is not None
    recipe = load_recipe(EXAMPLES.parent / job.spec.recipe.file)
    workflow = job.spec.rollout.workflow
    plays = issubclass(recipe.workflows.get(workflow, object), EnvironmentWorkflow | BoxToolsWorkflow)
    assert recipe.reward is not None or workflow == "agent" or plays
    assert workflow in {"rlvr", "agent", *recipe.workflows}
    assert "areal run examples/" in (recipe.module.__doc__ or "")


@pytest.mark.parametrize("name", GPU_JOBS)
def test_an_example_on_gpus_uses_them_all_and_fits_them_with_what_it_computes_again(name: str) -> None:
    config, gpus = GPU_JOBS[name]
    job = load_job(EXAMPLES / f"{name}.yaml")
    generation, trainer = job.spec.generation, job.spec.trainer
    assert trainer.world_size + generation.replicas * generation.engine.gpus == gpus
    findings, lines = memory_of(job, config)
    refused = [finding for finding in (*findings, *check(job)) if finding.severity is Severity.ERROR]
    assert refused == []
    assert {subject for subject, _ in lines} >= {"a trainer's GPU", "a server's GPU", "disk"}
    greedy, _ = memory_of(load_job(EXAMPLES / f"{name}.yaml", ["trainer.recompute=none"]), config)
    assert [finding.rule for finding in greedy] == ["does-not-fit"], "so that recompute is there for a reason"


def test_the_quickstart_is_the_recipe_that_was_seen_to_work() -> None:
    spec = load_job(EXAMPLES / "quickstart.yaml").spec
    algorithm, optimizer = spec.algorithm, spec.optimizer
    assert (algorithm.group_size, algorithm.batch_size, algorithm.max_steps, algorithm.max_staleness) == (8, 64, 160, 2)
    assert (optimizer.learning_rate, optimizer.warmup_steps, optimizer.min_lr_ratio) == (1e-4, 5, 0.1)
    assert (optimizer.lr_schedule, tuple(optimizer.betas), algorithm.clip_low) == ("linear", (0.9, 0.99), 0.2)
    assert (spec.evaluation.interval_steps, spec.evaluation.rows, spec.checkpoint.interval_steps) == (10, 500, 20)
    assert (spec.rollout.sampling.max_new_tokens, spec.rollout.sampling.temperature) == (8, 1.0)


def test_the_quickstarts_reward() -> None:
    reward = module("digits").reward
    assert reward("3142=", "1234", [], [], answer="1234") == 1.0
    assert reward("3142=", "1324", [], [], answer="1234") == 0.0


def test_a_graded_reward_rises_with_the_answer() -> None:
    reward = module("custom_reward").reward
    answers = ["", "9", "4321", "1243", "1234"]
    scores = [reward("3142=", answer, [], [], answer="1234") for answer in answers]
    assert scores == sorted(scores)
    assert (scores[0], scores[-1]) == (0.0, 1.0)
    assert len(set(scores[2:])) == 3
    assert reward("3142=", "12344444444", [], [], answer="1234") < scores[-1]


class Engine:
    """Answers from a list; one token a character."""

    def __init__(self, reward, answers: list[str]) -> None:
        self._reward = reward
        self._answers = iter(answers)
        self.asked: list[list[int]] = []
        self.tokenizer = self

    def encode(self, text: str):
        return as_ids([ord(c) for c in text])

    def decode(self, ids) -> str:
        return "".join(map(chr, ids))

    def prompt(self, row):
        from areal.workflow import Prompt

        return Prompt(row["prompt"], self.encode(row["prompt"]))

    async def agenerate(self, request) -> GenerationResult:
        self.asked.append(list(request.input_ids))
        ids = self.encode(next(self._answers))
        return GenerationResult(ids, np.full(len(ids), -0.5, "<f4"), (TokenSpan(0, len(ids), "3.f1", "s"),))

    async def score(self, *, prompt, completion, prompt_ids, completion_ids, row) -> float:
        return self._reward(prompt, completion, prompt_ids, completion_ids, **{k: row[k] for k in ("answer",)})


@pytest.mark.parametrize(
    ("answers", "turns", "reward"), [(["12"], 1, 1.0), (["21", "12"], 2, 0.5), (["21", "21"], 2, 0.0)]
)
async def test_a_second_try_goes_on_from_the_tokens_of_the_first(answers: list[str], turns: int, reward: float) -> None:
    example = module("multi_turn")
    engine = Engine(example.reward, answers)
    episode = await example.RetryWorkflow().arun_episode(engine, {"prompt": "21=", "answer": "12"})
    (sequence,) = episode.sequences
    check_episode(episode, vocab_size=256)
    assert episode.reward == reward
    assert len(engine.asked) == turns
    text = engine.decode(sequence.input_ids)
    trained = "".join(c for c, mask in zip(text, sequence.loss_mask, strict=True) if mask)
    assert trained == "".join(answers)
    if turns == 2:
        assert text == f"21={answers[0]}\n21={answers[1]}"
        assert engine.decode(engine.asked[1]) == f"21={answers[0]}\n21="


async def test_the_agents_reward_halves_with_its_second_try() -> None:
    said: list[list[str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        messages = json.loads(request.content)["messages"]
        said.append([message["content"] for message in messages])
        content = ["3142", "1234"][len(said) - 1]
        return httpx.Response(200, json={"choices": [{"message": {"role": "assistant", "content": content}}]})

    agent = module("agent_openai").SortAgent()
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        row = {"prompt": "3142=", "answer": "1234"}
        reward = await agent.run(row, base_url="http://gateway/v1", api_key="k", http_client=client)
    assert (reward, said) == (0.5, [["3142="], ["3142=", "3142", "3142="]])
