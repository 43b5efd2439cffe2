"""Checkpoints: whole or absent, of any world size, bitwise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from areal.errors import DataError, FencedError
from areal_trainer.checkpoint import catalog
from areal_trainer.checkpoint.catalog import Began
from areal_trainer.checkpoint.checkpointer import Checkpointer, Position
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.engine import Engine, EngineOptions
from areal_trainer.engine.group import Ranks
from support.trainer_parts import batch


@pytest.fixture(scope="module")
def ranks():
    made = Ranks()
    yield made
    made.close()


def mine():
    return None


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


def test_training_goes_on_bitwise_from_a_checkpoint(tmp_path, model_path, ranks):
    engine = Engine(model_path, EngineOptions(), ranks)
    train(engine, 0, 3)
    Checkpointer(tmp_path, 2, engine).save(Position(3, 12, 0, 1), mine)
    random = torch.rand(4)
    uninterrupted = train(engine, 3, 3)

    resumed = Engine(model_path, EngineOptions(), ranks)
    checkpointer = Checkpointer(tmp_path, 2, resumed)
    found = checkpointer.newest([])
    assert found is not None
    assert (found.record.step, found.record.next_group, found.record.fence) == (3, 12, 1)
    checkpointer.load(found)
    assert torch.equal(torch.rand(4), random)
    assert train(resumed, 3, 3) == uninterrupted
    assert same(engine, resumed)


def test_a_damaged_or_unsealed_checkpoint_is_passed_over(tmp_path, model_path, ranks):
    engine = Engine(model_path, EngineOptions(), ranks)
    checkpointer = Checkpointer(tmp_path, 9, engine)
    first = checkpointer.save(Position(1, 4, 0, 1), mine)
    second = checkpointer.save(Position(2, 8, 0, 1), mine)
    third = checkpointer.save(Position(3, 12, 0, 1), mine)
    (third / catalog.RECORD).unlink()
    shard = next(second.glob("*.distcp"))
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 2] ^= 1
    shard.write_bytes(raw)
    found, passed = catalog.newest(tmp_path)
    assert found is not None
    assert found.path == first
    assert len(passed) == 2


def test_a_checkpoint_of_a_replaced_trainer_is_no_past_of_this_run(tmp_path, model_path, ranks):
    engine = Engine(model_path, EngineOptions(), ranks)
    checkpointer = Checkpointer(tmp_path, 9, engine)
    checkpointer.save(Position(4, 16, 0, 1), mine)
    checkpointer.save(Position(9, 36, 0, 1), mine)  # written after fence 2 had begun at 4
    found = checkpointer.newest([Began(1, 0), Began(2, 4)])
    assert found is not None
    assert found.record.step == 4


def test_a_fenced_trainer_names_nothing(tmp_path, model_path, ranks):
    engine = Engine(model_path, EngineOptions(), ranks)

    def fenced():
        raise FencedError("a newer trainer lives")

    with pytest.raises(FencedError):
        Checkpointer(tmp_path, 2, engine).save(Position(1, 4, 0, 1), fenced)
    assert catalog.newest(tmp_path) == (None, [])


def test_the_newest_lineage_wins_over_the_higher_step():
    assert catalog.survives(5, 1, [Began(2, 5)])
    assert not catalog.survives(6, 1, [Began(2, 5)])
    assert catalog.survives(9, 3, [Began(1, 0), Began(2, 4)])


def test_only_the_newest_are_kept_and_leftovers_go(tmp_path, model_path, ranks):
    engine = Engine(model_path, EngineOptions(), ranks)
    (tmp_path / "step-000001.f1.tmp").mkdir()
    checkpointer = Checkpointer(tmp_path, 2, engine)
    for step in (1, 2, 3):
        checkpointer.save(Position(step, 4 * step, 0, 1), mine)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002.f1", "step-000003.f1"]
    again = checkpointer.save(Position(3, 12, 0, 1), mine)  # a replayed step under the same fence
    assert catalog.examine(again)[1] is not None


def test_another_model_does_not_load(tmp_path, model_path, ranks):
    engine = Engine(model_path, EngineOptions(), ranks)
    checkpointer = Checkpointer(tmp_path, 2, engine)
    path = checkpointer.save(Position(1, 4, 0, 1), mine)
    checkpointer._model_digest = "another"
    _, record = catalog.examine(path)
    assert record is not None
    with pytest.raises(DataError, match="another shape"):
        checkpointer.load(catalog.Found(path, record))
