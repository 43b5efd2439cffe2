"""Code of AReaL's shape, unchanged, through this project's workflow machinery."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from areal.errors import DataError
from areal.workflow import Sampling
from areal.workflow.episode import check_episode
from areal.workflow.recipe import load_recipe
from areal.workflow.streamed import StreamedAnswer, check_streamed
from areal.workflow.tokenizer import Tokenizer
from support.char_tokenizer import TEMPLATE, write_tokenizer
from support.listed_engine import Listed

WORKFLOW = """
import uuid
from typing import Any

import torch
from areal import workflow_context
from areal.api import AsyncRewardWrapper, InferenceEngine, ModelRequest, ModelResponse, RolloutWorkflow
from areal.api.cli_args import GenerationHyperparameters
from areal.utils import logging, stats_tracker
from areal.utils.hf_utils import apply_chat_template
from areal.utils.perf_tracer import atrace_session_phase, session_context, trace_session

logger = logging.getLogger("OneTurn")


class OneTurn(RolloutWorkflow):
    def __init__(self, reward_fn, gconfig: GenerationHyperparameters, tokenizer, enable_thinking=False,
                 train_prompt=False):
        self.reward_fn = AsyncRewardWrapper(reward_fn)
        self.gconfig = gconfig.new_with_stop_and_pad_token_ids(tokenizer)
        self.tokenizer, self.enable_thinking, self.train_prompt = tokenizer, enable_thinking, train_prompt

    @trace_session("reward")
    async def _score(self, resp: ModelResponse, prompt: str, data: dict[str, Any]) -> float:
        return await self.reward_fn(
            prompt, self.tokenizer.decode(resp.output_tokens), resp.input_tokens, resp.output_tokens, **data
        )

    @session_context()
    async def _sample(self, engine: InferenceEngine, request: ModelRequest):
        async with atrace_session_phase("generate"):
            return await engine.agenerate(request)

    async def arun_episode(self, engine, data):
        ids = apply_chat_template(
            self.tokenizer, data["messages"], tokenize=True, add_generation_prompt=True,
            enable_thinking=self.enable_thinking,
        )
        request = ModelRequest(rid=uuid.uuid4().hex, input_ids=ids, gconfig=self.gconfig.new(n_samples=1))
        resp = await self._sample(engine, request)
        reward = await self._score(resp, self.tokenizer.decode(ids), data)
        if reward < 0:
            return None
        stats_tracker.get(workflow_context.stat_scope()).scalar(reward=reward)
        row = {
            "input_ids": torch.tensor(resp.input_tokens + resp.output_tokens, dtype=torch.int32),
            "loss_mask": torch.tensor([int(self.train_prompt)] * resp.input_len + [1] * resp.output_len),
            "logprobs": torch.tensor([0.0] * resp.input_len + resp.output_logprobs),
            "versions": torch.tensor([-1] * resp.input_len + resp.output_versions),
            "attention_mask": torch.ones(resp.input_len + resp.output_len, dtype=torch.bool),
            "rewards": torch.tensor(reward, dtype=torch.float32),
        }
        return {name: value.unsqueeze(0) for name, value in row.items()}


class TwoTurns(OneTurn):
    async def arun_episode(self, engine, data):
        ids = self.tokenizer.apply_chat_template(data["messages"], add_generation_prompt=True)
        first = await engine.agenerate(ModelRequest(input_ids=ids, gconfig=self.gconfig.new(max_new_tokens=3)))
        more = ids + first.output_tokens + self.tokenizer.encode("ab")
        second = await engine.agenerate(ModelRequest(input_ids=more, gconfig=self.gconfig))
        mask = [0] * len(ids) + [1] * first.output_len + [0] * 2 + [1] * second.output_len
        whole = more + second.output_tokens
        padded = {"input_ids": whole + [0, 0], "loss_mask": mask + [0, 0], "attention_mask": [1] * len(whole) + [0, 0]}
        return {**{name: torch.tensor([value]) for name, value in padded.items()}, "rewards": torch.tensor([0.5])}
"""
REWARD = """
from areal.utils import logging

logger = logging.getLogger("GSM")


def graded(prompt, completions, prompt_ids, completion_ids, answer, **kwargs) -> float:
    if answer == "reject":
        return -1
    return float(completions == answer + "[EOS]" and prompt.endswith("<assistant>"))


def plain(prompt, completions, prompt_ids, completion_ids, answer, **kwargs) -> float:
    return float(completions == answer)
"""
RECIPE = """
from areal.workflow.upstream import UpstreamWorkflow, upstream_reward

reward = upstream_reward("rewards.py:plain")


class Single(UpstreamWorkflow):
    source = "theirs.py:OneTurn"
    arguments = {"reward_fn": "rewards.py:graded"}


class Double(UpstreamWorkflow):
    source = "theirs.py:TwoTurns"
    arguments = {"reward_fn": "rewards.py:graded"}


class Greedy(UpstreamWorkflow):
    source = "theirs.py:OneTurn"
    arguments = {"reward_fn": "rewards.py:graded", "train_prompt": True}
"""


@pytest.fixture
def recipe(tmp_path):
    for name, text in (("theirs.py", WORKFLOW), ("rewards.py", REWARD), ("recipe.py", RECIPE)):
        (tmp_path / name).write_text(text)
    yield load_recipe(tmp_path / "recipe.py")
    for name in [name for name in sys.modules if name.startswith(("areal_upstream_", "areal_recipe_"))]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return Tokenizer.from_dir(write_tokenizer(tmp_path_factory.mktemp("chat"), template=TEMPLATE))


class Remembering(Listed):
    """Answers from a list, and remembers requests and answers as a worker does."""

    def __init__(self, tokenizer, answers):
        super().__init__(tokenizer, answers, "")
        self.requests, self.streamed = [], []

    async def agenerate(self, request):
        result = await super().agenerate(request)
        self.requests.append(request)
        self.streamed.append(StreamedAnswer(len(self.streamed), request.input_ids, result))
        return result


def proved(episode, engine):
    """What a worker asks of every episode."""
    check_episode(episode, vocab_size=engine.tokenizer.vocab_size)
    check_streamed(episode, engine.streamed)
    return episode


async def test_a_workflow_of_one_turn_trains_its_answer_alone(recipe, chat):
    engine = Remembering(chat, [("12", "stop")])
    episode = proved(
        await recipe.workflows["Single"]().arun_episode(engine, {"question": "21=", "answer": "12"}), engine
    )
    (sequence,) = episode.sequences
    assert chat.decode(sequence.input_ids, skip_special=False) == "<user>21=<assistant>12[EOS]"
    assert sequence.loss_mask.tolist() == [0] * 5 + [1] * 3
    assert (sequence.reward, sequence.versions.tolist()) == (1.0, [-1] * 5 + [1] * 3)
    assert [request.sampling for request in engine.requests] == [None]


async def test_several_turns_are_spans_of_their_own_and_padding_is_cut(recipe, chat):
    engine = Remembering(chat, [("1", "length"), ("12", "stop")])
    episode = proved(await recipe.workflows["Double"]().arun_episode(engine, {"prompt": "21=", "answer": "12"}), engine)
    (sequence,) = episode.sequences
    assert chat.decode(sequence.input_ids, skip_special=False) == "<user>21=<assistant>1ab12[EOS]"
    assert [(span.start, span.end) for span in sequence.spans] == [(5, 6), (8, 11)]
    assert engine.requests[0].sampling == Sampling(max_new_tokens=3)


async def test_a_column_gives_way_to_an_argument_of_its_name(recipe, chat):
    engine = Remembering(chat, [("12", "stop")])
    episode = await recipe.workflows["Single"]().arun_episode(engine, {"prompt": "21=", "answer": "12"})
    assert episode.reward == 1.0


async def test_none_rejects_the_sample(recipe, chat):
    engine = Remembering(chat, [("12", "stop")])
    assert await recipe.workflows["Single"]().arun_episode(engine, {"question": "21=", "answer": "reject"}) is None


async def test_a_token_that_was_not_sampled_is_never_trained(recipe, chat):
    engine = Remembering(chat, [("12", "stop")])
    with pytest.raises(DataError, match="token 0 has loss_mask 1, and this episode's engine did not sample it"):
        await recipe.workflows["Greedy"]().arun_episode(engine, {"question": "21=", "answer": "12"})


async def test_an_evaluation_first_leaves_training_its_temperature(recipe, chat):
    """One instance serves both: the sampling that it was given must not become the job's."""
    workflow = recipe.workflows["Single"]()
    for sampling in (Sampling().greedy(), Sampling(), Sampling().greedy()):
        engine = Remembering(chat, [("12", "stop")])
        engine.sampling = sampling
        await workflow.arun_episode(engine, {"question": "21=", "answer": "12"})
        assert [request.sampling for request in engine.requests] == [None]


def test_a_reward_function_of_theirs_is_a_recipes_reward(recipe):
    assert recipe.reward("21=", "12", np.array([1]), np.array([2]), answer="12", other=1) == 1.0


def test_the_recipe_itself_imports_no_torch(recipe):
    assert "torch" not in vars(recipe.module)


def test_a_copied_recipe_finds_its_neighbours_where_the_run_was_started(recipe, tmp_path, monkeypatch):
    """A run directory has a copy of the recipe, and of nothing beside it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(recipe.path.parent)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "copied.py").write_text(RECIPE)
    copied = load_recipe(tmp_path / "run" / "copied.py")
    assert copied.reward("21=", "12", np.array([1]), np.array([2]), answer="12") == 1.0


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere.py:f", "is not there"),
        ("rewards.py:nothing", "has no nothing"),
        ("broken.py:f", "No module named 'areal.reward.nothing'"),
    ],
)
def test_what_can_not_be_loaded_is_named(recipe, target, said, monkeypatch):
    Path(recipe.path.parent / "broken.py").write_text("from areal.reward.nothing import x\n")
    from areal.workflow.upstream import _load

    with pytest.raises(DataError, match=said):
        _load(target, recipe.path.parent)


def test_several_samples_are_never_made_one_in_silence():
    from areal.workflow.upstream import _names

    joined = _names()["concat_padded_tensors"]
    assert joined([{"rewards": [1.0]}]) == {"rewards": [1.0]}
    with pytest.raises(DataError, match="2 samples"):
        joined([{}, {}])
