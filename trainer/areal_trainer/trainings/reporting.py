"""Metrics of a supervised run: rows of `metrics.jsonl` and `evaluations.jsonl`, TensorBoard, Prometheus."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal.files import append_lines
from areal.observe.metrics import RoleMetrics

from areal_trainer.reporting import StepLog

_PHASES = ("reference", "train", "evaluate", "checkpoint")


class RowsReporter(StepLog):
    """Writes one row a step and one an evaluation. A replayed step appears again; who reads takes the last."""

    def __init__(
        self, training: str, fence: int, metrics_file: Path, evaluations: Path, tensorboard: Path | None,
        metrics: RoleMetrics, metric: str,
    ) -> None:  # fmt: skip
        super().__init__(metrics_file, tensorboard, metrics)
        self._training = training
        self._metric = metric
        self._fence = fence
        self._evaluations = evaluations
        self._last = time.monotonic()

    def step(self, step: int, figures: Mapping[str, Any], seconds: Mapping[str, float]) -> None:
        """A step is done. `figures` has its loss, tokens, gradient norm and what else the training knows."""
        now = time.monotonic()
        compute = seconds.get("train", 0.0)
        row: dict[str, Any] = {
            "step": step,
            "fence": self._fence,
            "policy_version": step + 1,
            "policy_id": f"{step + 1}.f{self._fence}",
            "training": self._training,
            **figures,
            "tokens_per_s": figures["trained_tokens"] / compute if compute else 0.0,
            "wall_s": now - self._last,
            "seconds": {phase: seconds.get(phase, 0.0) for phase in _PHASES},
            "at": time.time(),
        }
        self._last = now
        row = self.write(row)
        metrics = self._metrics
        metrics.counter("areal_trainer_steps_total").inc()
        metrics.counter("areal_trainer_tokens_total").inc(row["tokens"])
        metrics.counter("areal_trainer_skipped_steps_total").inc(row["skipped_updates"])
        metrics.gauge("areal_trainer_policy_version").set(step + 1)
        if row["grad_norm"] is not None:
            metrics.gauge("areal_trainer_grad_norm").set(row["grad_norm"])

    def evaluated(self, version: int, rows: int, figures: Mapping[str, float]) -> None:
        """Held-out rows were measured under one version."""
        row = {
            "version": version,
            "metric": self._metric,
            "mean": figures[self._metric],
            "rows": rows,
            **figures,
            "at": time.time(),
        }
        append_lines(self._evaluations, [json.dumps(row, separators=(",", ":")).encode()])
        self.chart("evaluation", version, figures)
