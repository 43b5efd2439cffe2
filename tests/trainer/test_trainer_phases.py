"""Phases of rank 0 alone: the other ranks hear from it every few seconds, so none outlives a collective's timeout."""

from __future__ import annotations

import threading

import pytest
from areal.errors import InfraError
from areal_trainer.engine import group
from areal_trainer.engine.group import RankMessage, first_works


class TwoRanks:
    """Rank 0 of two, that remembers what it told the other."""

    first = True
    world_size = 2

    def __init__(self) -> None:
        self.told: list[bool] = []
        self.third = threading.Event()

    def tell(self, message: RankMessage) -> RankMessage:
        self.told.append(message.header["done"])
        if len(self.told) == 3:
            self.third.set()
        return message


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setattr(group, "_SLICE_S", 0.001)
    return TwoRanks()


def test_rank_0_speaks_while_it_works(ranks):
    assert first_works(ranks, lambda: ranks.third.wait(30.0) and "the answer") == "the answer"
    assert ranks.told[:3] == [False] * 3
    assert ranks.told.index(True) == len(ranks.told) - 1


def test_what_the_work_raises_is_raised_once_the_others_go_on(ranks):
    def broken() -> None:
        raise InfraError("the volume is full", fix="free some space")

    with pytest.raises(InfraError, match="the volume is full"):
        first_works(ranks, broken)
    assert ranks.told[-1] is True
