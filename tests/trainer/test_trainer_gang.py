"""Trainers as processes: two gloo ranks, SIGKILL, SIGTERM, exit codes."""

from __future__ import annotations

import signal

import pytest
from areal.errors import ExitCode
from areal.ledger import evidence, fences
from support.trainer_world import World, losses, until

pytestmark = [pytest.mark.component, pytest.mark.timeout(400)]  # a loaded machine imports torch for a minute


def finish(gang, world: World, timeout_s: float = 150.0) -> int:
    try:
        return gang.wait(timeout_s)
    finally:
        if gang.poll() is None:
            gang.kill()
            pytest.fail((world.root / "trainer.log").read_text()[-4000:])


def test_two_ranks_get_the_losses_of_one_and_one_goes_on_from_their_checkpoint(make_world):
    algorithm, optimizer = {"miniBatches": 2, "maxSteps": 4}, {"learningRate": 3e-3}
    alone = make_world("alone", algorithm=algorithm, optimizer=optimizer)
    alone.fill(range(12), staleness=9)
    assert alone.train() == ExitCode.DONE
    alone.redis.flush()
    trainer = {"procPerNode": 2, "microBatchTokens": 64}
    pair = make_world("pair", algorithm=algorithm, optimizer=optimizer, spec={"trainer": trainer})
    pair.fill(range(6), staleness=9)
    gang = pair.gang(2)
    until(lambda: pair.controller.committed >= 2, 120.0)
    gang.send_signal(signal.SIGTERM)
    assert finish(gang, pair) == ExitCode.DRAINED
    for spent in losses(pair, "rank_seconds"):  # of rank 1
        assert all(spent[phase][0] > 0 for phase in ("wait", "train", "publish"))
    pair.spec = {}
    pair.fill(range(6, 12), staleness=9)
    assert pair.train() == ExitCode.DONE
    for field in ("loss", "grad_norm", "entropy", "behaviour_weight_max"):
        assert losses(pair, field) == pytest.approx(losses(alone, field), abs=1e-5), field
    assert losses(pair, "trained_tokens") == losses(alone, "trained_tokens")
    assert pair.controller.published[-1][:2] == ("4.f2", True)


def test_a_killed_trainer_replays_the_same_losses_and_trains_no_group_twice(make_world):
    algorithm = {"maxSteps": 5}
    whole = make_world("whole", algorithm=algorithm)
    whole.fill(range(15), staleness=9)
    assert whole.train() == ExitCode.DONE
    whole.redis.flush()
    world = make_world("killed", algorithm=algorithm)
    world.fill(range(9), staleness=9)  # step 2 is trained, its checkpoint is at 2
    gang = world.gang()
    until(lambda: len(world.controller.published) == 4 and world.controller.committed >= 2, 120.0)
    gang.kill()
    assert gang.wait(60) == -signal.SIGKILL
    world.fill(range(9, 15), staleness=9)
    assert finish(world.gang(), world) == ExitCode.DONE, (world.root / "trainer.log").read_text()
    assert world.controller.attached == [(1, 0), (2, 2)]
    assert losses(world) == losses(whole)
    assert losses(world, "grad_norm") == losses(whole, "grad_norm")
    read = evidence.read(world.root / "evidence")
    assert [(entry.step, entry.fence) for entry in read.entries] == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 2), (4, 2)]
    replayed = [entry.groups for entry in read.entries if entry.step == 2]
    assert replayed[0] == replayed[1]
    published = [policy for policy, _, _ in world.controller.published]
    assert published == ["0.f1", "1.f1", "2.f1", "3.f1", "4.f2", "5.f2"]


def test_a_fenced_gang_exits_75_and_says_so(make_world):
    world = make_world()
    world.fill(range(6), staleness=9)
    world.controller.on_advance = lambda step: fences.allocate(world.root / "fences", "trainer") if step == 1 else None
    assert finish(world.gang(), world) == ExitCode.INFRA
    assert "fence 1 is over" in (world.root / "trainer.log").read_text()
