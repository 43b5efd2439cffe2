"""The verifier protocol, and the results that verifiers give.

A result is a score, a graded verdict, or a fault that says whose fault it was. A fault never carries a score: no
infrastructure problem becomes reward 0.
"""

from collections.abc import Sequence

from areal.errors import DataError
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as pb


class Verifier:
    """Scores items of one kind. Safe to call concurrently."""

    name: str
    slots: int  # items that it can score at once

    async def start(self) -> None:
        """Gets ready; raises DataError when the job's reward cannot work at all."""

    async def stop(self) -> None:
        """Ends everything it started."""

    async def score(self, items: Sequence[pb.ScoreItem]) -> list[pb.ScoreResult]:
        """One result an item, in order. Never raises for an item's sake."""
        raise NotImplementedError


def fault_result(
    kind: common.FaultKind.ValueType, message: str, *, fix: str = "", traceback: str = "", wall_s: float = 0.0
) -> pb.ScoreResult:
    """A result that is no score."""
    fault = common.Fault(kind=kind, message=message, fix=fix, traceback=traceback)
    return pb.ScoreResult(fault=fault, wall_s=wall_s)


def data_fault(error: DataError) -> pb.ScoreResult:
    return fault_result(common.FAULT_KIND_DATA, error.message, fix=error.fix)
