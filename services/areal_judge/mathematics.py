"""Scorer of mathematics, as the judge's service and evaluations need one: handed in by whoever starts them."""

from collections.abc import Sequence
from typing import Protocol

from areal.v1 import reward_pb2 as pb


class MathScorer(Protocol):
    """Compares answers with expected ones. Safe to call concurrently; starts what it needs at the first call."""

    async def score(self, items: Sequence[pb.ScoreItem]) -> list[pb.ScoreResult]:
        """One result an item, in order. Never raises for an item's sake."""

    async def stop(self) -> None:
        """Ends everything it started."""
