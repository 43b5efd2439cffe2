"""The controller's line to the ledger: how long it has been silent, asked or waiting for an answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from areal.errors import InfraError
from areal.observe.waits import WaitRegistry
from areal.rollout.controller import ledger_link
from areal.rollout.controller.ledger_link import LedgerLink


class HangingLedger:
    """Answers who it is, hangs, or fails."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.fails = False

    async def run_id(self) -> str:
        await self.answers.wait()
        if self.fails:
            raise InfraError("no route to Redis")
        return "one"


class IdleCarrier:
    unanswered: tuple[Any, ...] = ()


@pytest.mark.parametrize("fails", [False, True], ids=["hangs", "fails"])
def test_a_ledger_is_silent_from_its_last_answer_on(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    now = [100.0]
    monkeypatch.setattr(ledger_link, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(ledger_link, "_WATCH_S", 0.005)
    monkeypatch.setattr(ledger_link, "_PAUSE_S", 0.005)

    async def scene() -> list[float]:
        ledger = HangingLedger()
        ledger.answers.set()
        link = LedgerLink(ledger, 1, 2, WaitRegistry("controller"), "one")  # type: ignore[arg-type]
        task = asyncio.create_task(link.run(IdleCarrier()))  # type: ignore[arg-type]
        told = []
        for answers, broken, passed in ((True, False, 5.0), (fails, True, 30.0), (True, False, 2.0)):
            ledger.fails = broken
            ledger.answers.set() if answers else ledger.answers.clear()
            await asyncio.sleep(0.05)
            now[0] += passed
            await asyncio.sleep(0.05)
            told.append(link.silent_s)
        task.cancel()
        return told

    assert asyncio.run(scene()) == [0.0, 30.0, 0.0]
