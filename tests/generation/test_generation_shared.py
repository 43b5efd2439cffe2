"""An agent whose cards are the trainer's too: asleep it holds no memory and loses nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
from areal.cards import CardLock, CardSide
from areal.spec.serving import SglangEngine
from areal.v1 import generation_pb2 as wire
from generation_parts import World, running_world, start_of
from support.engine_models import hf_logprobs

pytestmark = [pytest.mark.component, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="function")]

PROMPT = [5, 17, 33, 9, 40]
ASLEEP, AWAKE = wire.SERVER_PHASE_ASLEEP, wire.SERVER_PHASE_AWAKE


@pytest_asyncio.fixture(
    params=["embedded", pytest.param("sglang", marks=[pytest.mark.sglang_real, pytest.mark.nightly])],
    loop_scope="function",
)
async def turns(request, models, tmp_path) -> AsyncIterator[World]:
    engine = SglangEngine(type="sglang", max_running_requests=32) if request.param == "sglang" else None
    async with running_world(models, tmp_path / "volume", engine, cards=tmp_path / "cards") as world:
        yield world


@pytest.fixture
def trainer(tmp_path) -> CardLock:
    return CardLock(tmp_path / "cards", CardSide.TRAINING)


async def test_what_runs_is_kept_through_a_training_turn_and_goes_on_with_the_new_weights(turns, trainer, models):
    state = await turns.until(lambda state: True)
    assert (state.phase, state.live, state.ready) == (ASLEEP, False, False)
    assert turns.agent.process.starts == 0, "the trainer may be loading its model on these cards"
    assert trainer.try_take()
    await turns.controller.turn(2, sleep=False)
    await turns.until(lambda state: state.phase == wire.SERVER_PHASE_WAKING)
    assert turns.agent.process.starts == 0
    trainer.release()
    await turns.serve(0, 0)
    pid = turns.agent.process.pid
    assert not trainer.try_take()
    await turns.running(start_of("long", PROMPT, 450))

    await turns.controller.turn(3, sleep=True)
    state = await turns.until(lambda state: state.phase == ASLEEP)
    assert (state.live, state.ready) == (True, False)
    assert trainer.try_take()
    made = len(turns.client.answers["long"].ids)
    turns.client.start(start_of("late", PROMPT, 6))
    await turns.publish(1, 1)
    await turns.controller.turn(2, sleep=False)  # it is late
    await asyncio.sleep(0)
    trainer.release()
    await turns.controller.turn(4, sleep=False)
    await turns.ready(1)
    long, late = await turns.client.ended("long", "late")
    assert turns.agent.process.pid == pid
    assert [policy for policy, _, _ in long.spans] == ["0.f1", "1.f1"]
    split = long.spans[0][2]
    assert 0 < split <= max(made + 16, 1)
    assert len(long.ids) == 450
    for span, model in ((slice(0, split), models[0]), (slice(split, None), models[1])):
        assert np.allclose(long.logprobs[span], hf_logprobs(model, PROMPT, long.ids)[span], atol=1e-5)
    assert late.spans == [("1.f1", 0, 6)]


@pytest.mark.nightly
async def test_an_engine_that_dies_asleep_is_started_when_it_is_woken_and_not_before(turns, trainer, models):
    await turns.controller.turn(2, sleep=False)
    await turns.serve(0, 0)
    await turns.running(start_of("lost", PROMPT, 450))
    await turns.controller.turn(3, sleep=True)
    await turns.until(lambda state: state.phase == ASLEEP)
    assert trainer.try_take()
    os.kill(turns.agent.process.pid, signal.SIGKILL)
    (lost,) = await turns.client.ended("lost")
    assert lost.reason == "ENGINE_LOST"
    await turns.until(lambda state: not state.live and state.phase == ASLEEP)
    assert turns.agent.process.starts == 1
    await turns.controller.turn(4, sleep=False)
    await turns.until(lambda state: state.phase == wire.SERVER_PHASE_WAKING)
    trainer.release()
    await turns.ready(0)
    assert turns.agent.process.starts == 2
    (answer,) = await turns.generate(start_of("after", PROMPT, 6))
    assert answer.spans == [("0.f1", 0, 6)]


@pytest.mark.nightly
async def test_an_engine_that_does_not_give_its_memory_back_is_ended(turns, trainer):
    await turns.controller.turn(2, sleep=False)
    await turns.serve(0, 0)
    os.kill(turns.agent.process.pid, signal.SIGSTOP)
    await turns.controller.turn(3, sleep=True)
    await turns.until(lambda state: state.phase == ASLEEP)
    assert trainer.try_take()
    trainer.release()
    await turns.controller.turn(4, sleep=False)
    await turns.ready(0)
