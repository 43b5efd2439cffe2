"""Metrics of a supervised run: rows of `metrics.jsonl` and `evaluations.jsonl`, TensorBoard, Prometheus."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal.files import append_lines
from areal.observe.metrics import RoleMetrics

_PHASES = ("reference", "train", "evaluate", "checkpoint")


class Reporter:
    """Writes one row a step and one an evaluation. A replayed step appears again; who reads takes the last."""

    def __init__(
        self, training: str, fence: int, metrics_file: Path, evaluations: Path, tensorboard: Path | None,
        metrics: RoleMetrics, metric: str,
    ) -> None:  # fmt: skip
        self._training = training
        self._metric = metric
        self._fence = fence
        self._file = metrics_file
        self._evaluations = evaluations
        self._metrics = metrics
        self._events = _event_writer(tensorboard) if tensorboard is not None else None
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
        row = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }
        append_lines(self._file, [json.dumps(row, separators=(",", ":"), allow_nan=False).encode()])
        self._chart("trainer", step, row)
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
        self._chart("evaluation", version, figures)

    def checkpoint(self, seconds: float, size_bytes: int) -> None:
        """A checkpoint is on disk."""
        self._metrics.histogram("areal_checkpoint_duration_seconds").observe(seconds)
        self._metrics.gauge("areal_checkpoint_bytes").set(size_bytes)
        self._metrics.gauge("areal_checkpoint_last_success_timestamp_seconds").set(time.time())

    def close(self) -> None:
        """Write out what is buffered."""
        if self._events is not None:
            self._events.close()

    def _chart(self, group: str, step: int, values: Mapping[str, Any]) -> None:
        if self._events is None:
            return
        for name, value in values.items():
            if isinstance(value, int | float) and name not in ("step", "fence", "at"):
                self._events.add_scalar(f"{group}/{name}", value, step)


def _event_writer(directory: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(directory), flush_secs=5)
