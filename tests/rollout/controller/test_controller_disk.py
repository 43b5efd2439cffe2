"""Writes off the event loop: they don't hold it up, they end before who waits for them does, and they fail aloud."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from areal.ledger.state import LedgerModel
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.rollout.controller import loop as loop_module
from areal.rollout.controller.core import Controller, Rebuilt
from areal.rollout.controller.disk_writer import KeptWriter, write_to_the_end
from areal.rollout.controller.gauges import Gauges
from areal.rollout.controller.inputs import PublishWeights, SetHotFields
from areal.rollout.controller.kept import KeptFile, RestoredState
from areal.rollout.controller.loop import CoreLoop, Outlets
from areal.rollout.controller.streams import Streams
from controller_bench import SETTINGS, weights


class SlowFile(KeptFile):
    """A kept file on a disk that waits to be let go."""

    def __init__(self, directory: Path) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()
        super().__init__(directory, 1, lambda: 1)
        self.go.clear()
        self.begun.clear()

    def write(self, kept: RestoredState) -> None:
        self.begun.set()
        self.go.wait(10)
        super().write(kept)


def core_loop(file: KeptFile) -> CoreLoop:
    unused: Any = None
    link: Any = SimpleNamespace(wake=lambda: None)
    core = Controller(SETTINGS, Rebuilt(view=LedgerModel().scan()), 0.0)
    return CoreLoop(core, Outlets(unused, link, KeptWriter(file), unused, Streams(), unused, SETTINGS.group_size))


def gauges() -> Gauges:
    return Gauges(RoleMetrics("controller", "job"), WaitRegistry("controller"), ProgressCounter())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_weights_are_served_after_a_slow_write_that_holds_up_no_pass(tmp_path: Path) -> None:
    file = SlowFile(tmp_path)
    loop = core_loop(file)
    tasks = [asyncio.create_task(loop.run(gauges())), asyncio.create_task(loop._outlets.kept.run(loop.kept))]
    asked = asyncio.create_task(loop.ask(PublishWeights(1, weights(3))))
    await until(file.begun.is_set)
    refused = SetHotFields(max_steps=-1)
    waiting = asyncio.create_task(loop.ask(refused))
    seen = loop.core.attention
    await until(lambda: loop.core.attention > seen)  # passes go on
    assert not asked.done()
    assert loop.core.wanted is None
    file.go.set()
    assert await asked
    assert KeptFile(tmp_path, 2, lambda: 2).kept.served == loop.core.wanted == weights(3)
    with pytest.raises(Exception, match="maxSteps can't be -1"):
        await waiting
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_call_does_not_wait_for_the_end_of_a_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "_REST", 1e9)
    monkeypatch.setattr(loop_module, "_MOST_REST_S", 1e9)
    loop = core_loop(KeptFile(tmp_path, 1, lambda: 1))
    tasks = [asyncio.create_task(loop.run(gauges())), asyncio.create_task(loop._outlets.kept.run(loop.kept))]
    async with asyncio.timeout(20):
        for version in range(3):
            assert await loop.ask(PublishWeights(1, weights(version)))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_cancelled_writer_ends_after_its_write(tmp_path: Path) -> None:
    file = SlowFile(tmp_path)
    writer = KeptWriter(file)
    running = asyncio.create_task(writer.run(lambda: None))
    writer.submit(RestoredState(max_steps=4))
    await until(file.begun.is_set)
    running.cancel()
    await asyncio.wait([running], timeout=0.01)
    assert not running.done()
    file.go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert KeptFile(tmp_path, 2, lambda: 2).kept.max_steps == 4


async def test_a_write_that_fails_is_raised_and_after_a_cancellation_logged(caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()

    def failing() -> None:
        assert go.wait(30)
        raise OSError(28, "No space left on device")

    writing = asyncio.create_task(write_to_the_end(failing))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert "the last write failed: [Errno 28] No space left on device" in caplog.text
    with pytest.raises(OSError, match="No space left"):
        await write_to_the_end(failing)
