"""Whole trainers against a real Redis and a scripted controller."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from areal.errors import DataError, ExitCode, FencedError, InfraError
from areal.ledger import evidence, fences
from areal.ledger.consumer import StalenessViolation
from areal.weights.manifest import MANIFEST_NAME, Manifest
from areal.weights.verify import open_version, verify_tensors
from areal_trainer.checkpoint import catalog
from areal_trainer.feed import Feed
from support.redis_server import RedisServer
from support.trainer_world import until

pytestmark = pytest.mark.component


def rows(world):
    return [json.loads(line) for line in (world.root / "metrics.jsonl").read_text().splitlines()]


def trained(world):
    """step → groups, as the evidence that survives says."""
    read = evidence.read(world.root / "evidence")
    assert not read.problems
    kept = {}
    for entry in sorted(read.entries, key=lambda entry: entry.fence):
        if not any(start.fence > entry.fence and start.from_step <= entry.step for start in read.starts):
            assert entry.step not in kept
            kept[entry.step] = [group.group for group in entry.groups]
    return kept


def test_a_run_trains_every_group_once_in_order_and_ends(make_world):
    world = make_world()
    world.fill(range(14), tombstones=(2, 7), staleness=9)
    assert world.train() == ExitCode.DONE
    assert trained(world) == {0: [0, 1, 3], 1: [4, 5, 6], 2: [8, 9, 10], 3: [11, 12, 13]}
    ages = [group.ages for entry in evidence.read(world.root / "evidence").entries for group in entry.groups]
    assert {one[1:] for one in ages} == {(0, 0, 9, 9)}, "all of version 0"
    assert min(one[0] for one in ages) > 0
    controller = world.controller
    assert controller.attached == [(1, 0)]
    assert controller.advances == [(1, step, 3) for step in range(4)]
    assert [(policy, final) for policy, final, _ in controller.published] == [
        ("0.f1", False),
        ("1.f1", False),
        ("2.f1", False),
        ("3.f1", False),
        ("4.f1", True),
    ]
    assert controller.finished
    assert sorted(path.name for path in (world.root / "checkpoints").iterdir()) == ["step-000002.f1", "step-000004.f1"]
    log = rows(world)
    assert [row["step"] for row in log] == [0, 1, 2, 3]
    assert all(row["grad_norm"] > 0 and row["tokens"] > 0 and row["policy_version"] == row["step"] + 1 for row in log)
    assert [row["staleness_max"] for row in log] == [0, 1, 2, 3]
    assert log[0]["logprob_mismatch"] is not None  # its tokens are of the very version that trains
    assert log[1]["logprob_mismatch"] is None
    assert all(row["behaviour_gap"] >= 0 for row in log), (
        "told in every step that trains, whatever the age of its tokens"
    )


def test_the_final_model_is_what_was_published_and_what_the_canary_says(make_world):
    from transformers import AutoModelForCausalLM

    world = make_world(algorithm={"maxSteps": 2})
    world.fill(range(6))
    assert world.train() == ExitCode.DONE
    version = world.root / "weights" / "v00000002.f1"
    raw = (version / MANIFEST_NAME).read_bytes()
    manifest = open_version(version, Manifest.from_bytes(raw).digest())
    verify_tensors(version, manifest)
    model = AutoModelForCausalLM.from_pretrained(world.root / "model")
    ids = torch.tensor([manifest.canary.token_ids])
    with torch.no_grad():
        scored = torch.log_softmax(model(ids).logits[0, :-1].double(), -1).gather(1, ids[0, 1:, None]).squeeze(1)
    np.testing.assert_allclose(scored.numpy(), manifest.canary.logprobs[1:], atol=1e-5)
    start = AutoModelForCausalLM.from_pretrained(world.model)
    assert not torch.equal(start.model.embed_tokens.weight, model.model.embed_tokens.weight)


def test_a_stopped_trainer_saves_and_the_next_goes_on_with_the_same_losses(make_world):
    whole = make_world("whole", algorithm={"maxSteps": 6})
    whole.fill(range(18), staleness=9)
    assert whole.train() == ExitCode.DONE

    whole.redis.flush()
    parts = make_world("parts", algorithm={"maxSteps": 6})
    parts.fill(range(18), staleness=9)
    stopping = threading.Event()
    parts.controller.on_advance = lambda step: stopping.set() if step == 2 else None
    assert parts.train(stopping) == ExitCode.DRAINED
    assert len(rows(parts)) == 3
    parts.controller.on_advance = lambda step: None
    assert parts.train() == ExitCode.DONE
    assert parts.controller.attached == [(1, 0), (2, 3)]
    assert [row["loss"] for row in rows(parts)] == [row["loss"] for row in rows(whole)]
    assert [row["grad_norm"] for row in rows(parts)] == [row["grad_norm"] for row in rows(whole)]
    assert trained(parts) == trained(whole)
    published = [policy for policy, _, _ in parts.controller.published]
    assert published == ["0.f1", "1.f1", "2.f1", "3.f1", "4.f2", "5.f2", "6.f2"]


def test_a_checkpoint_that_was_sealed_but_not_committed_is_gone_on_from(make_world, monkeypatch):
    world = make_world(algorithm={"maxSteps": 2})
    world.fill(range(6), staleness=9)

    def dies(feed, state):
        raise InfraError("the trainer dies before the ledger hears of the checkpoint")

    with monkeypatch.context() as patched:
        patched.setattr(Feed, "committed", dies)
        with pytest.raises(InfraError, match="before the ledger hears"):
            world.train()
    assert (world.root / "checkpoints" / "step-000002.f1").exists()
    assert world.controller.committed == 0
    assert world.train() == ExitCode.DONE
    assert world.controller.committed == 2
    assert world.controller.attached == [(1, 0), (2, 2)]
    assert trained(world) == {0: [0, 1, 2], 1: [3, 4, 5]}


def test_training_goes_on_while_a_checkpoint_is_written_and_nothing_is_freed_before_its_seal(make_world, monkeypatch):
    world = make_world()
    world.fill(range(12), staleness=9)
    may_seal = threading.Event()
    sealed_with: list[tuple[int, int]] = []  # the newest step told and steps freed when the name was given
    seal = catalog.seal

    def late(partial, record):
        if record.step == 2:
            assert may_seal.wait(30)
            sealed_with.append((world.controller.advances[-1][1], world.controller.committed))
        seal(partial, record)

    monkeypatch.setattr(catalog, "seal", late)
    world.controller.on_advance = lambda step: may_seal.set() if step == 3 else None
    assert world.train() == ExitCode.DONE
    assert sealed_with == [(3, 0)]
    assert sorted(trained(world)) == [0, 1, 2, 3]
    assert world.controller.committed == 4


def test_several_mini_batches_clip_and_still_train_every_token(make_world):
    world = make_world(algorithm={"miniBatches": 3, "clipLow": 0.05}, optimizer={"learningRate": 0.3, "warmupSteps": 0})
    world.fill(range(12), staleness=9)
    assert world.train() == ExitCode.DONE
    log = rows(world)
    assert any(row["clip_ratio"] > 0 and row["approx_kl"] > 0 for row in log)
    assert all(row["updates"] > 1 and row["seconds"]["prox"] > 0 for row in log)


def test_one_update_a_step_needs_no_extra_pass_and_clips_nothing(make_world):
    world = make_world()
    world.fill(range(12), staleness=9)
    assert world.train() == ExitCode.DONE
    assert all(row["clip_ratio"] == 0 and row["approx_kl"] == 0 and row["seconds"]["prox"] == 0 for row in rows(world))
    assert any(abs(row["behaviour_weight_mean"] - 1) > 1e-3 for row in rows(world))


def test_a_batch_that_changed_is_taken_again_and_a_forgetful_controller_attached_again(make_world):
    world = make_world(algorithm={"maxSteps": 2})
    world.fill(range(6))
    world.controller.refuse_advances = 14  # the channel itself tries each call four times
    assert world.train() == ExitCode.DONE
    assert trained(world) == {0: [0, 1, 2], 1: [3, 4, 5]}
    assert set(world.controller.attached) == {(1, 0)}
    assert len(world.controller.attached) > 1


def test_a_token_older_than_its_groups_bound_reaches_no_gradient(make_world):
    world = make_world()
    world.fill(range(12), staleness=1)
    with pytest.raises(StalenessViolation, match="group 6 for step 2"):
        world.train()
    assert sorted(trained(world)) == [0, 1]


def test_a_newer_trainer_ends_this_one_untouched(make_world):
    world = make_world()
    world.fill(range(12), staleness=9)

    def usurp(step):
        if step == 1:
            fences.allocate(world.root / "fences", "trainer")

    world.controller.on_advance = usurp
    with pytest.raises(FencedError):
        world.train()
    assert not list((world.root / "checkpoints").glob("step-000002.f1"))


def test_a_restarted_controller_is_told_the_step_again(make_world):
    world = make_world(algorithm={"maxSteps": 3})
    world.fill(range(6))
    result = []
    trainer = threading.Thread(target=lambda: result.append(world.train()))
    trainer.start()
    until(lambda: len(world.controller.advances) >= 2)
    world.stop()
    world.start()
    until(lambda: len(world.controller.advances) >= 3)
    assert world.controller.advances[-1] == (1, 1, 3)
    world.fill(range(6, 9))
    trainer.join(30)
    assert result == [ExitCode.DONE]
    assert trained(world) == {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7, 8]}


def test_a_restarted_redis_costs_nothing(make_world, tmp_path):
    server = RedisServer.start(tmp_path / "redis")
    try:
        world = make_world(redis=server, algorithm={"maxSteps": 3})
        world.fill(range(6))
        result = []
        trainer = threading.Thread(target=lambda: result.append(world.train()))
        trainer.start()
        until(lambda: len(world.controller.advances) == 2)
        server.kill()
        server.restart()
        world.fill(range(9))
        trainer.join(30)
        assert result == [ExitCode.DONE]
        assert trained(world) == {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7, 8]}
    finally:
        server.stop()


def test_a_trainer_waits_for_a_redis_that_starts_later_and_can_be_stopped_meanwhile(make_world, tmp_path):
    server = RedisServer.start(tmp_path / "redis")
    try:
        world = make_world(redis=server, algorithm={"maxSteps": 1})
        world.fill(range(3))
        server.stop()
        stopping, result = threading.Event(), []
        waiting = threading.Thread(target=lambda: result.append(world.train(stopping)))
        waiting.start()
        until(lambda: fences.newest(world.root / "fences", "trainer") == 1)
        stopping.set()
        waiting.join(60)
        assert (result, world.controller.attached) == ([ExitCode.DRAINED], [])
        again = threading.Thread(target=lambda: result.append(world.train()))
        again.start()
        until(lambda: fences.newest(world.root / "fences", "trainer") == 2)
        server.restart()
        again.join(60)
        assert result[1:] == [ExitCode.DONE]
    finally:
        server.stop()


def test_an_update_that_is_not_finite_is_skipped_and_the_batch_counts(make_world, tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "import numpy as np\n"
        "calls = []\n"
        "def compute_advantages(batch):\n"
        "    calls.append(1)  # the first is of a made-up batch\n"
        "    return np.full(len(batch.rewards), 1e300 if len(calls) == 3 else 0.5)  # more than float32 holds\n"
    )
    world = make_world(recipe=recipe)
    world.fill(range(12), staleness=9)
    assert world.train() == ExitCode.DONE
    read = evidence.read(world.root / "evidence")
    assert [entry.outcome for entry in read.entries] == ["trained", "skipped", "trained", "trained"]
    log = rows(world)
    assert [row["skipped_updates"] for row in log] == [0, 1, 0, 0]
    assert log[1]["grad_norm"] is None
    assert all(np.isfinite(row["loss"]) for row in log[2:])


def test_an_advantage_that_is_no_number_ends_the_run_and_names_its_sample(make_world, tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "import numpy as np\n"
        "calls = []\n"
        "def compute_advantages(batch):\n"
        "    calls.append(1)\n"
        "    return np.where(np.arange(len(batch.rewards)) == len(calls) - 1, np.nan if len(calls) > 1 else 1, 0.5)\n"
    )
    world = make_world(recipe=recipe)
    world.fill(range(12), staleness=9)
    with pytest.raises(
        DataError, match=r"the stage advantages gives advantages = nan for sample 1 of group 0, token \d"
    ):
        world.train()


def test_the_byte_budget_forces_a_checkpoint_that_frees_space(make_world):
    world = make_world(spec={"checkpoint": {"intervalSteps": 99, "keep": 2}})
    world.controller.checkpoint_now = True
    world.fill(range(3))
    stopping = threading.Event()
    trainer = threading.Thread(target=lambda: world.train(stopping))
    trainer.start()
    try:
        until(lambda: world.controller.beats > 0 and len(world.controller.advances) == 1)
        world.fill(range(3, 6))
        until(lambda: world.controller.committed >= 1)
    finally:
        stopping.set()
        trainer.join(30)
    assert (world.root / "checkpoints").exists()


def test_a_recipe_replaces_the_loop_and_must_reach_the_end(make_world, tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text("def train(ctx):\n    ctx.rollout.prepare_batch()\n")
    world = make_world(recipe=recipe)
    world.fill(range(3))
    with pytest.raises(DataError, match="returned at step 0 of 4"):
        world.train()


def test_a_trainer_leaves_its_exit_code_and_the_signal_of_the_one_before(make_world, tmp_path, monkeypatch):
    recipe = tmp_path / "recipe.py"
    recipe.write_text("def train(ctx):\n    ctx.rollout.prepare_batch()\n    raise KeyError('answer')\n")
    world = make_world(recipe=recipe)
    fences.allocate(world.root / "fences", "trainer")
    monkeypatch.setenv("AREAL_LAST_EXIT", "-11")
    world.fill(range(3))
    with pytest.raises(KeyError):
        world.train()
    exits = evidence.read(world.root / "evidence").exits
    assert exits == [evidence.Exit(1, -11), evidence.Exit(2, 70, "KeyError")]


def test_a_step_that_crashed_four_times_gives_up_its_largest_group(make_world):
    world = make_world()
    for _ in range(4):
        fence = fences.allocate(world.root / "fences", "trainer")
        log = evidence.EvidenceLog(world.root / "evidence", fence)
        log.start(0, 3, 4)
        log.attempt(0, {0: 10, 1: 99, 2: 20})
        log.close()
        evidence.exited(world.root / "evidence", evidence.Exit(fence, 70, "ValueError"), "rank-0")
    world.fill(range(13), tombstones=(1,), staleness=9)
    assert world.train() == ExitCode.DONE
    assert world.controller.tombstones == [(1, "poison")]


def test_a_batch_of_which_every_group_has_ended_changes_nothing_and_the_run_goes_on(make_world, tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text("def compute_advantages(batch):\n    return batch.rewards - batch.rewards.max()\n")
    world = make_world(recipe=recipe)
    world.fill(range(12), poison=(1, 3, 4, 5), staleness=9)
    assert world.train() == ExitCode.DONE
    assert trained(world) == {0: [0, 2], 1: [], 2: [6, 7, 8], 3: [9, 10, 11]}
    assert world.controller.advances == [(1, 0, 2), (1, 1, 0), (1, 2, 3), (1, 3, 3)]
    assert [policy for policy, _, _ in world.controller.published] == [f"{version}.f1" for version in range(5)]
    empty = rows(world)[1]
    assert (empty["groups"], empty["tokens"], empty["updates"], empty["reward_mean"]) == (0, 0, 0, None)


def test_a_lowered_length_ends_the_run_early(make_world):
    world = make_world(algorithm={"maxSteps": 9})
    world.fill(range(6))
    world.controller.max_steps = 2
    assert world.train() == ExitCode.DONE
    assert len(rows(world)) == 2
    assert world.controller.published[-1][:2] == ("2.f1", True)


def test_a_stage_of_the_recipe_s_own_replaces_the_rewards_that_advantages_are_made_of(make_world, tmp_path):
    example = Path(__file__).resolve().parents[2] / "examples" / "own_graph.py"
    flat = example.read_text().replace('columns["rewards"] - 0.01 * sampled', "0.0 * sampled")
    (tmp_path / "recipe.py").write_text(flat)
    world = make_world(recipe=tmp_path / "recipe.py")
    world.fill(range(12), staleness=9)
    assert world.train() == ExitCode.DONE
    assert sorted(trained(world)) == [0, 1, 2, 3]
    assert all(row["reward_mean"] > 0 for row in rows(world))  # what was earned is told as it was
    assert [row["zero_variance_groups"] for row in rows(world)] == [3] * 4  # of the replaced rewards: all flat
    assert [row["trained_tokens"] for row in rows(world)] == [0] * 4


def test_the_examples_loop_updates_twice_while_the_policy_is_close(make_world):
    recipe = Path(__file__).resolve().parents[2] / "examples" / "own_loop.py"
    world = make_world(recipe=recipe, optimizer={"learningRate": 1e-3, "warmupSteps": 0})
    world.fill(range(12), staleness=9)
    assert world.train() == ExitCode.DONE
    assert sorted(trained(world)) == [0, 1, 2, 3]
    assert any(row["approx_kl"] > 0 for row in rows(world))  # the second update starts away from the proximal policy
    assert world.controller.published[-1][:2] == ("4.f1", True)
