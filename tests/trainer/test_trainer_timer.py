"""Seconds by phase, told while a phase goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter
from areal_trainer.reporting import Reporter
from areal_trainer.spans import PhaseTimer


def test_waiting_is_counted_slice_by_slice_before_any_step(tmp_path: Path) -> None:
    now = [0.0]
    timer = PhaseTimer(lambda: now[0])
    metrics = RoleMetrics("trainer", "digits")
    reporter = Reporter(tmp_path / "metrics.jsonl", None, 1, metrics, ProgressCounter())
    timer.spent = reporter.spent
    labels = {"namespace": "local", "rljob": "digits", "role": "trainer"}

    def counted() -> float | None:
        return metrics.registry.get_sample_value("areal_trainer_data_wait_seconds_total", labels)

    for phase, seconds, total in (("wait", 5.0, 5.0), ("take", 1.0, 5.0), ("wait", 5.0, 10.0)):
        with timer.phase(phase):
            now[0] += seconds
        assert counted() == pytest.approx(total)
    assert timer.take() == {"wait": 10.0, "take": 1.0}
    reporter.close()
