"""Checkpoints: whole or absent, of any world size, bitwise."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from areal.errors import DataError, FencedError, InfraError
from areal_trainer.checkpoint import catalog
from areal_trainer.checkpoint.catalog import Began
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.checkpoint.saving import RunPosition
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.adam_states import AdamWOptions
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from support.small_disk import fill, small_disk
from support.trainer_parts import batch


def mine():
    return None


def saved(checkpointer, position, still_mine=mine):
    """A checkpoint that is on disk."""
    return checkpointer.save(position, still_mine).wait().path


def train(engine, seed, steps=1):
    norms = []
    for step in range(steps):
        tokens = batch(3, 4, seed=seed + step)
        micros = rank_micro_batches(
            tokens, np.arange(12), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64, pack_length=None
        )
        engine.accumulate(micros, lambda logprobs, entropy, micro: -logprobs.sum() / 50)
        norms.append(engine.optimizer.step(1e-2))
    return norms


def same(first, second):
    return all(torch.equal(a[1], b[1]) and a[0] == b[0] for a, b in zip(first.export(), second.export(), strict=True))


@pytest.mark.parametrize("state", ["float32", "bfloat16", "cpu"])
def test_training_goes_on_bitwise_from_a_checkpoint(tmp_path, model_path, ranks, state):
    options = ModelOptions(optimizer=AdamWOptions(state=state))
    engine = PolicyEngine(model_path, options, ranks)
    train(engine, 0, 3)
    saving = Checkpointer(tmp_path, 2, engine).save(RunPosition(3, 1), mine)
    random = torch.rand(4)
    uninterrupted = train(engine, 3, 3)  # while it is written
    saving.wait()

    resumed = PolicyEngine(model_path, options, ranks)
    train(resumed, 7)  # what it has by then is gone
    checkpointer = Checkpointer(tmp_path, 2, resumed)
    found = checkpointer.newest([])
    assert found is not None
    assert (found.record.step, found.record.fence) == (3, 1)
    checkpointer.load(found)
    assert torch.equal(torch.rand(4), random)
    assert train(resumed, 3, 3) == uninterrupted
    assert same(engine, resumed)


@pytest.mark.parametrize(("before", "after"), [("float32", "bfloat16"), ("bfloat16", "cpu")])
def test_a_resumed_run_may_hold_its_moments_otherwise(tmp_path, model_path, ranks, before, after):
    engine, other = (
        PolicyEngine(model_path, ModelOptions(optimizer=AdamWOptions(state=state)), ranks) for state in (before, after)
    )
    train(engine, 0, 2)
    saved(Checkpointer(tmp_path, 2, engine), RunPosition(2, 1))
    checkpointer = Checkpointer(tmp_path, 2, other)
    checkpointer.load(checkpointer.newest([]))
    assert other.optimizer.updates == 2
    for name, value in engine.optimizer.state().items():
        moved = other.optimizer.state()[name]
        assert torch.allclose(moved.to_local().float(), value.to_local().float(), rtol=2**-8, atol=0), name


def test_a_damaged_or_unsealed_checkpoint_is_passed_over(tmp_path, model_path, ranks, caplog):
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    checkpointer = Checkpointer(tmp_path, 9, engine)
    first = saved(checkpointer, RunPosition(1, 1))
    second = saved(checkpointer, RunPosition(2, 1))
    third = saved(checkpointer, RunPosition(3, 1))
    (third / catalog.RECORD).unlink()
    shard = next(second.glob("*.distcp"))
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 2] ^= 1
    shard.write_bytes(raw)
    found = checkpointer.newest([])
    assert found is not None
    assert found.path == first
    told = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert [path.name in words for path, words in zip((third, second), told, strict=True)] == [True, True]


def test_a_checkpoint_of_a_replaced_trainer_is_no_past_of_this_run(tmp_path, model_path, ranks):
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    checkpointer = Checkpointer(tmp_path, 9, engine)
    saved(checkpointer, RunPosition(4, 1))
    saved(checkpointer, RunPosition(9, 1))  # written after fence 2 had begun at 4
    found = checkpointer.newest([Began(1, 0), Began(2, 4)])
    assert found is not None
    assert found.record.step == 4


def test_a_fenced_trainer_names_nothing(tmp_path, model_path, ranks):
    engine = PolicyEngine(model_path, ModelOptions(), ranks)

    def fenced():
        raise FencedError("a newer trainer lives")

    checkpointer = Checkpointer(tmp_path, 2, engine)
    with pytest.raises(FencedError):
        saved(checkpointer, RunPosition(1, 1), fenced)
    assert checkpointer.newest([]) is None
    assert list(tmp_path.iterdir()) == []


def test_the_newest_lineage_wins_over_the_higher_step():
    assert catalog.survives(5, 1, [Began(2, 5)])
    assert not catalog.survives(6, 1, [Began(2, 5)])
    assert catalog.survives(9, 3, [Began(1, 0), Began(2, 4)])


def test_only_the_newest_are_kept_and_leftovers_go(tmp_path, model_path, ranks):
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    (tmp_path / "step-000001.f1.tmp").mkdir()
    checkpointer = Checkpointer(tmp_path, 2, engine)
    for step in (1, 2, 3):
        saved(checkpointer, RunPosition(step, 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002.f1", "step-000003.f1"]
    again = saved(checkpointer, RunPosition(3, 1))  # a replayed step under the same fence
    assert catalog.examine(again)[1] is not None


@pytest.mark.parametrize("field", ["num_key_value_heads", "intermediate_size", "head_dim", "num_hidden_layers"])
def test_a_model_that_differs_in_one_size_has_another_shape(field, tmp_path, model_path, ranks):
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    digest = Checkpointer(tmp_path, 2, engine)._model_digest
    config = json.loads((model_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, field: 2 * config[field]}))
    engine.model_path = tmp_path
    assert Checkpointer(tmp_path, 2, engine)._model_digest != digest
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_scaling": None, "_name": "other"}))
    assert Checkpointer(tmp_path, 2, engine)._model_digest == digest


def test_random_numbers_of_an_accelerator_are_saved_and_continued(model_path, ranks, monkeypatch):
    state = torch.arange(16, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: state.clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda given, device: state.copy_(given))
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    monkeypatch.setattr(engine.ranks, "device", torch.device("cuda", 0))
    states = engine.rng_states()
    state.zero_()
    engine.set_rng_states(states)
    assert state.tolist() == list(range(16))


def test_a_checkpoint_that_does_not_fit_is_refused_with_bytes_and_fills_no_disk(tmp_path, model_path, ranks):
    with small_disk(tmp_path / "disk", 4) as disk:
        engine = PolicyEngine(model_path, ModelOptions(), ranks)
        checkpointer = Checkpointer(disk / "checkpoints", 2, engine)
        ballast = fill(disk, leave=16 << 10)
        with pytest.raises(InfraError, match=r"step-000001.f1 .*: it takes .* KiB, and .* has .* KiB free"):
            saved(checkpointer, RunPosition(1, 1))
        assert shutil.disk_usage(disk).free >= 16 << 10
        ballast.unlink()
        assert catalog.examine(saved(checkpointer, RunPosition(1, 1)))[1] is not None
        checkpointer.close()


def test_another_model_does_not_load(tmp_path, model_path, ranks):
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    checkpointer = Checkpointer(tmp_path, 2, engine)
    path = saved(checkpointer, RunPosition(1, 1))
    checkpointer._model_digest = "another"
    _, record = catalog.examine(path)
    assert record is not None
    with pytest.raises(DataError, match="another shape"):
        checkpointer.load(catalog.FoundCheckpoint(path, record))
