"""A slow disk: ranks hear of each other all the while, and only a disk that takes too long ends the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

import pytest
from areal.errors import InfraError
from areal.observe.waits import WaitRegistry
from areal_trainer.checkpoint import saving
from areal_trainer.checkpoint.saving import RunPosition, SavedCheckpoint, Saving
from areal_trainer.engine.group import COLLECTIVE_TIMEOUT, RankMessage

SAVED = SavedCheckpoint(RunPosition(4, 1), Path("step-000004.f1"), 1.0)


class Disk(Future[SavedCheckpoint]):
    """Writes for so many seconds of a clock that only waiting moves."""

    def __init__(self, writes_s: float) -> None:
        super().__init__()
        self.writes_s, self.now = writes_s, 0.0

    def monotonic(self) -> float:
        return self.now

    def result(self, timeout: float | None = None) -> SavedCheckpoint:
        self.now = min(self.writes_s, self.now + (self.writes_s if timeout is None else timeout))
        if self.now < self.writes_s:
            raise FutureTimeoutError
        return SAVED


class Words:
    """The group of rank 0, or of another rank that hears what rank 0 said; notes when it spoke."""

    def __init__(self, disk: Disk, heard: Iterator[RankMessage] | None = None) -> None:
        self.first, self.said, self.at = heard is None, [], [disk.now]
        self._disk, self._heard = disk, heard

    def tell(self, message: RankMessage | None) -> RankMessage:
        told = message if self._heard is None else next(self._heard)
        assert told is not None
        self.said.append(told)
        self.at.append(self._disk.now)
        return told


def begun(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, heard: Iterator[RankMessage] | None = None
) -> tuple[Saving, Words]:
    monkeypatch.setattr(saving.time, "monotonic", disk.monotonic)
    words = Words(disk, heard)
    return Saving(SAVED.position, disk, words, WaitRegistry("trainer")), words  # type: ignore[arg-type]


def test_a_disk_that_writes_for_half_an_hour_keeps_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(saving.DEADLINE_S - 60)
    first, words = begun(disk, monkeypatch)
    assert first.wait() == SAVED
    silences = [later - earlier for earlier, later in zip(words.at, words.at[1:], strict=False)]
    assert max(silences) < COLLECTIVE_TIMEOUT.total_seconds() / 10
    other, heard = begun(Disk(1.0), monkeypatch, iter(words.said))
    assert other.wait() == SAVED
    assert heard.said == words.said


def test_a_disk_that_takes_longer_than_the_deadline_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = begun(Disk(10 * saving.DEADLINE_S), monkeypatch)
    with pytest.raises(InfraError, match="the checkpoint of step 4 takes longer than 1800 s") as refused:
        first.wait()
    assert "volume" in refused.value.fix
