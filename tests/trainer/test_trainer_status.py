"""What the trainer tells operators of its steps: how many this process made, in which epoch."""

from __future__ import annotations

from typing import Any

import pytest
from areal.observe.waits import ProgressCounter
from areal.v1 import operations_pb2 as operations
from areal_trainer.control import Telling, TrainerControl


async def told(control: TrainerControl) -> operations.GetTrainerStatusResponse:
    context: Any = None
    return await control.GetTrainerStatus(operations.GetTrainerStatusRequest(), context)


async def test_steps_of_a_checkpoint_are_not_made_and_each_process_has_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AREAL_EPOCH", "4")
    telling = Telling(step=40, restored=40)
    control = TrainerControl(telling, ProgressCounter())
    first = await told(control)
    assert (first.step, first.steps_made, first.epoch) == (40, 0, 4)
    telling.step = 42
    second = await told(control)
    assert (second.step, second.steps_made) == (42, 2)
    assert first.incarnation == second.incarnation != 0
    assert (await told(TrainerControl(telling, ProgressCounter()))).incarnation != first.incarnation


async def test_outside_of_a_gang_there_is_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AREAL_EPOCH", raising=False)
    assert (await told(TrainerControl(Telling(), ProgressCounter()))).epoch == 0
