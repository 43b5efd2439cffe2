"""Models and losses of a recipe's own stages: the examples learn, stop and go on as if nothing had happened."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from areal.errors import DataError, ExitCode
from areal.workflow.recipe import load_recipe
from areal_trainer.actor import Actor
from areal_trainer.checkpoint.catalog import RECORD
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.frozen import StageModels
from support.trainer_parts import batch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = {"process_reward": {}, "moving_reference": {"kl": {"coefficient": 0.5}}, "auxiliary_loss": {}}


def rows(world):
    return [json.loads(line) for line in (world.root / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.component
@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_a_run_that_was_stopped_goes_on_with_the_losses_of_a_whole_one(name, make_world):
    recipe = EXAMPLES / f"{name}.py"
    assert len(recipe.read_text().splitlines()) <= 60
    fields = {"recipe": recipe, "algorithm": {"maxSteps": 4, "miniBatches": 2, **NAMES[name]}}
    whole = make_world("whole", **fields)
    whole.fill(range(12), staleness=9)
    assert whole.train() == ExitCode.DONE
    whole.redis.flush()
    parts = make_world("parts", **fields)
    parts.fill(range(12), staleness=9)
    stopping = threading.Event()
    parts.controller.on_advance = lambda step: stopping.set() if step == 2 else None
    assert parts.train(stopping) == ExitCode.DRAINED
    parts.controller.on_advance = lambda step: None
    assert parts.train() == ExitCode.DONE
    for figure in ("loss", "grad_norm", "reference_kl"):
        assert [row[figure] for row in rows(parts)] == [row[figure] for row in rows(whole)]
    record = json.loads((whole.root / "checkpoints" / "step-000004.f1" / RECORD).read_text())
    assert record["other_updates"] == {"process_reward": {"process_reward": 4}, "moving_reference": {"average": 0}}.get(
        name, {}
    )


@pytest.mark.component
def test_a_checkpoint_without_a_stages_model_is_refused_by_name(make_world):
    fields = {"algorithm": {"maxSteps": 4}}
    world = make_world(**fields)
    world.fill(range(12), staleness=9)
    stopping = threading.Event()
    world.controller.on_advance = lambda step: stopping.set() if step == 1 else None
    assert world.train(stopping) == ExitCode.DRAINED
    world.recipe = EXAMPLES / "process_reward.py"
    with pytest.raises(DataError, match=r"step-000002\.f1 has nothing of process_reward"):
        world.train()


@pytest.mark.component
def test_the_moving_reference_is_nearer_than_the_start_model(make_world):
    found = {}
    for name, recipe in (("start", None), ("moving", EXAMPLES / "moving_reference.py")):
        world = make_world(name, recipe=recipe, algorithm={"kl": {"coefficient": 0.01}})
        world.fill(range(12), staleness=9)
        assert world.train() == ExitCode.DONE
        found[name] = [row["reference_kl"] for row in rows(world)]
        world.redis.flush()
    assert found["start"][0] == found["moving"][0] == pytest.approx(0.0, abs=1e-9)
    assert 0 < found["moving"][-1] < found["start"][-1]


def parts_of(model_path, ranks):
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    return engine, StageModels(engine, model_path, 4096, None)


class Columns(dict):
    """Inputs of a stage as the trainer makes them."""

    def __init__(self, tokens, **columns):
        super().__init__(loss_mask=tokens.loss_mask, rewards=tokens.rewards, **columns)
        self.tokens, self.offsets = tokens, tokens.offsets


def test_the_process_reward_of_the_example_learns_which_answers_are_right(model_path, ranks):
    recipe = load_recipe(EXAMPLES / "process_reward.py")
    own = recipe.module.ProcessReward()
    _, models = parts_of(model_path, ranks)
    own.start(models)
    tokens = batch(4, 4)
    chances = []
    for _ in range(30):
        scores = own.score(Columns(tokens))["process_scores"]
        chances.append(recipe.module.chance(scores))
        own.learn(Columns(tokens, process_scores=scores))
    mask, right = tokens.trainable(), tokens.rewards[tokens.sequence_of] == 1.0
    np.testing.assert_allclose(chances[0][mask], 0.5)  # a head of zeros has no opinion
    assert chances[-1][mask & right].mean() > chances[-1][mask & ~right].mean() + 0.2
    assert models.parts["process_reward"].updates == 30


def test_a_copy_of_the_policy_stays_follows_and_leaves_the_policy_as_it_was(model_path, ranks):
    engine, models = parts_of(model_path, ranks)
    copy = models.copy_of_policy("average")
    with pytest.raises(DataError, match="two models of the step are called average"):
        models.copy_of_policy("average")
    tokens = batch(2, 4)
    before = copy.logprobs(Columns(tokens))
    with torch.no_grad():
        for parameter in engine.parameters():
            parameter.to_local().mul_(1.1)
    weights = [parameter.to_local().clone() for parameter in engine.parameters()]
    np.testing.assert_array_equal(copy.logprobs(Columns(tokens)), before)
    assert all(torch.equal(p.to_local(), kept) for p, kept in zip(engine.parameters(), weights, strict=True))
    copy.follow(1.0)
    after = copy.logprobs(Columns(tokens))
    assert np.abs(after - before).max() > 1e-3
    some = copy.logprobs(Columns(tokens, trained=np.arange(8) == 3))
    np.testing.assert_allclose(some, np.where(tokens.sequence_of == 3, after, 0.0), atol=1e-5)


def test_the_auxiliary_loss_of_the_example_makes_the_shortest_right_answer_likelier(model_path, ranks):
    from types import SimpleNamespace

    from areal.dataflow.builtin import StepNeeds, policy_gradient
    from areal.dataflow.own import GraphContext
    from areal_trainer.actor import ActorOptions
    from areal_trainer.algorithms.advantages import AdvantageOptions
    from areal_trainer.engine.optimizer import RateSchedule
    from areal_trainer.objective import ObjectiveOptions

    recipe = load_recipe(EXAMPLES / "auxiliary_loss.py")
    graph = recipe.graph(GraphContext(None, policy_gradient(StepNeeds())))
    options = ActorOptions(ObjectiveOptions(), AdvantageOptions(), RateSchedule(1e-2, 0, "constant"))
    tokens = batch(4, 4)
    best = recipe.module.pick(Columns(tokens, group_ids=tokens.group_ids))["best"][tokens.sequence_of] == 1.0
    gained = {}
    for own in (True, False):
        actor = Actor(
            PolicyEngine(model_path, ModelOptions(), ranks), options, None, own_graph=graph if own else None,
            compute_loss=recipe.compute_loss if own else None,
            compute_advantages=lambda given: np.full(len(given.rewards), 1e-6),
        )  # fmt: skip
        before = actor.logprobs(tokens).numpy()
        for step in range(3):
            given = SimpleNamespace(step=step, max_steps=3, tokens=tokens, micro_batch_divisor=1)
            actor.update(given, actor.advantages(tokens))
        gained[own] = (actor.logprobs(tokens).numpy() - before)[best & tokens.trainable()].sum()
    assert gained[True] > gained[False]
    assert gained[True] > 0
