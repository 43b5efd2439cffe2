"""The wait for the final evaluation, on a clock of its own; whose fault an error of a rank is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from areal.errors import ExitCode, InfraError
from areal.observe.waits import WaitRegistry
from areal_trainer.blame import blamed
from areal_trainer.control import Orders
from areal_trainer.engine.group import RankGroup, RankMessage
from areal_trainer.first_rank import FirstRank
from areal_trainer.publish.canary import CanaryProbe
from areal_trainer.rollout import Rollout
from areal_trainer.spans import PhaseTimer

COLLECTIVE_S = 600.0
PROBE = CanaryProbe(np.array([1]), None)


class Evaluation:
    """A row ends every `row_s`; what the first rank tells the others is timed."""

    first = True

    def __init__(self, rows: int, row_s: float) -> None:
        self.orders = Orders()
        self.now = 0.0
        self.told: list[tuple[float, bool]] = []
        self._rows, self._row_s = rows, row_s

    def sleep(self, seconds: float) -> None:
        self.now += 50 * seconds  # faster than beats
        self.orders.evaluated_rows = min(self._rows, int(self.now / self._row_s))
        self.orders.evaluation_done = self.orders.evaluated_rows == self._rows

    def tell(self, message: RankMessage) -> RankMessage:
        self.told.append((self.now, message.header["done"]))
        return message

    def wait(self) -> None:
        feed = SimpleNamespace(link=SimpleNamespace(orders=self.orders, check=lambda: None))
        first = FirstRank(cast(Any, feed), cast(Any, None), now=lambda: self.now, sleep=self.sleep)
        ranks = cast(RankGroup, self)
        timer = PhaseTimer()
        Rollout(
            ranks,
            1,
            8,
            first=first,
            publisher=cast(Any, None),
            timer=timer,
            probe=PROBE,
            now=lambda: self.now,
            waits=WaitRegistry("trainer"),
        ).evaluate()


def test_an_evaluation_of_a_day_is_waited_for_as_long_as_rows_end() -> None:
    evaluation = Evaluation(rows=640, row_s=120.0)
    evaluation.wait()
    assert evaluation.now >= 640 * 120.0
    times = [at for at, _ in evaluation.told]
    assert max(later - at for at, later in zip([0.0, *times], times, strict=False)) < COLLECTIVE_S / 10
    assert [done for _, done in evaluation.told].index(True) == len(times) - 1


def test_an_evaluation_that_ends_no_row_is_given_up() -> None:
    evaluation = Evaluation(rows=3, row_s=10_000.0)
    with pytest.raises(InfraError, match="ended no row in 900 s, 0 before"):
        evaluation.wait()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 600000ms for recv"), ExitCode.INFRA),
        (RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"), ExitCode.INFRA),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ExitCode.BUG),
        (ValueError("Timed out waiting"), ExitCode.BUG),
    ],
)
def test_a_collective_that_timed_out_is_a_lost_rank_and_no_bug(error: Exception, code: ExitCode) -> None:
    assert blamed(error).exit_code is code
