"""Metrics of a step: JSONL, TensorBoard, Prometheus.

Owns the row of `metrics.jsonl`. A replayed step appears again under its new fence; who reads takes the last. The
torn last line of a killed trainer is ended, not continued.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from areal.files import append_lines
from areal.observe.metrics import RoleMetrics
from areal.observe.traces import NO_TRACES, Traces
from areal.observe.waits import ProgressCounter
from areal.values.policy import PolicyId

from areal_trainer.actor import UpdateFigures
from areal_trainer.algorithms.advantages import Advantages, teacher_kl
from areal_trainer.checkpoint.saving import SavedCheckpoint
from areal_trainer.critic import CriticFigures
from areal_trainer.data.batch import TokenBatch
from areal_trainer.spans import PHASES

_NO_FIGURES = ("step", "fence", "at")
_OF_LOSS = (
    "loss", "clip_ratio", "rejected_ratio", "approx_kl", "reference_kl", "behaviour_weight_mean",
    "behaviour_weight_max", "behaviour_gap", "logprob_mismatch", "logprob_mismatch_max", "entropy",
)  # fmt: skip


class StepLog:
    """Rows of `metrics.jsonl`, TensorBoard's curves and what Prometheus is told of checkpoints, for any training."""

    def __init__(self, path: Path, tensorboard: Path | None, metrics: RoleMetrics) -> None:
        self._path = path
        self._tensorboard = tensorboard
        self._events: Any = None
        self._metrics = metrics

    def write(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Append a row and draw its numbers; what is not finite is null."""
        told: dict[str, Any] = {n: _finite(value) if isinstance(value, float) else value for n, value in row.items()}
        append_lines(self._path, [json.dumps(told, separators=(",", ":"), allow_nan=False).encode()])
        self.chart("trainer", told["step"], told)
        for name, value in told.items():
            if name not in _NO_FIGURES and (value is None or isinstance(value, int | float)):
                self._metrics.gauge("areal_trainer_row", figure=name).set(math.nan if value is None else value)
        return told

    def chart(self, group: str, step: int, values: Mapping[str, Any]) -> None:
        """Draw numbers under a group's name."""
        if self._tensorboard is None:
            return
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter

            # From `step` on: TensorBoard forgets what a trainer that died drew of this step and later ones.
            self._events = SummaryWriter(str(self._tensorboard), flush_secs=5, purge_step=step)
        for name, value in values.items():
            if isinstance(value, int | float) and name not in _NO_FIGURES:
                self._events.add_scalar(f"{group}/{name}", value, step)

    def checkpoint(self, saved: SavedCheckpoint) -> None:
        """A checkpoint is on disk."""
        self._metrics.histogram("areal_checkpoint_duration_seconds").observe(saved.wall_s)
        self._metrics.gauge("areal_checkpoint_bytes").set(saved.size_bytes)
        self._metrics.gauge("areal_checkpoint_last_success_timestamp_seconds").set(time.time())

    def close(self) -> None:
        """Write out what is buffered."""
        if self._events is not None:
            self._events.close()


class Reporter(StepLog):
    """Writes one row a step. Rank 0 only."""

    def __init__(
        self,
        path: Path,
        tensorboard: Path | None,
        fence: int,
        metrics: RoleMetrics,
        progress: ProgressCounter,
        traces: Traces = NO_TRACES,
    ) -> None:
        super().__init__(path, tensorboard, metrics)
        self._fence = fence
        self._progress = progress
        self._traces = traces
        self._last = time.monotonic()
        self.skipped_steps = 0
        self.tokens_per_s = 0.0

    def step(
        self,
        step: int,
        tokens: TokenBatch,
        advantages: Advantages,
        update: UpdateFigures,
        seconds: dict[str, float],
        others: Sequence[Sequence[float]] = (),
        figures: Mapping[str, float] | None = None,
    ) -> None:
        """A batch is consumed. `seconds` of publish and checkpoint are those since the row before.

        `others` is [ranks − 1][PHASES], the seconds of rank 1 and on. `figures` are those that the user's code named.
        """
        now = time.monotonic()
        wall = now - self._last
        self._last = now
        compute = seconds.get("prox", 0.0) + seconds.get("train", 0.0)
        self.tokens_per_s = update.loss.tokens / compute if compute else 0.0
        self.skipped_steps += not update.finite
        row = self._row(step, tokens, advantages, update)
        row["tokens_per_s"] = self.tokens_per_s
        row["wall_s"] = wall
        row["seconds"] = {phase: seconds.get(phase, 0.0) for phase in PHASES}
        if others:
            columns = zip(PHASES, zip(*others, strict=True), strict=True)
            row["rank_seconds"] = {phase: [round(one, 4) for one in spent] for phase, spent in columns if any(spent)}
        if figures:
            row["figures"] = {name: _finite(value) for name, value in figures.items()}
        row["at"] = time.time()
        row = self.write(row)
        self.chart("seconds", step, row["seconds"])
        self.chart("figures", step, row.get("figures", {}))
        traced = next((group for group in tokens.group_ids if self._traces.wants(int(group))), None)
        self._count(row, update, seconds, None if traced is None else self._traces.exemplar(int(traced)))
        self._progress.policy_id = str(PolicyId(step + 1, self._fence))
        self._progress.advance()

    def checkpoint(self, saved: SavedCheckpoint) -> None:
        super().checkpoint(saved)
        self._progress.advance()

    def spent(self, phase: str, seconds: float) -> None:
        """A slice of a phase has passed. Waiting is counted as it goes on: a step may not come for hours."""
        if phase == "wait":
            self._metrics.counter("areal_trainer_data_wait_seconds_total").inc(seconds)

    def _row(self, step: int, tokens: TokenBatch, advantages: Advantages, update: UpdateFigures) -> dict[str, Any]:
        staleness = _staleness(step, tokens)
        rewards = _rewards(tokens, advantages.counted)
        used = advantages.values[advantages.trained]
        answers = np.bincount(tokens.sample_of[tokens.sequence_of[tokens.versions >= 0]])
        loss = update.loss
        return {
            "step": step,
            "fence": self._fence,
            "policy_version": step + 1,
            "policy_id": str(PolicyId(step + 1, self._fence)),
            "reward_mean": _mean(rewards),
            "reward_std": _spread(rewards),
            "groups": len(np.unique(tokens.group_ids)),
            "groups_begun": update.begun,
            "samples": len(np.unique(tokens.sample_of)),
            "sequences": tokens.sequences,
            "answer_tokens_mean": _mean(answers),
            "answer_tokens_p95": float(np.percentile(answers, 95)) if answers.size else None,
            "truncated_ratio": _mean(tokens.truncated),
            "zero_variance_groups": advantages.zero_variance_groups,
            "advantage_mean": _mean(used[np.isfinite(used)]),
            "advantage_std": _spread(used[np.isfinite(used)]),
            **{name: getattr(loss, name) for name in _OF_LOSS},
            "grad_norm": update.grad_norm,
            "learning_rate": update.learning_rate,
            "updates": update.applied,
            "skipped_updates": update.tried - update.applied,
            "staleness_mean": _mean(staleness),
            "staleness_max": int(staleness.max()) if staleness.size else None,
            "tokens": tokens.tokens,
            "trained_tokens": loss.tokens,
            **_of_critic(update.critic),
            **_of_teacher(tokens, advantages),
            **update.router,
        }

    def _count(
        self, row: dict[str, Any], update: UpdateFigures, seconds: dict[str, float], exemplar: dict[str, str] | None
    ) -> None:
        metrics = self._metrics
        metrics.counter("areal_trainer_steps_total").inc()
        metrics.counter("areal_trainer_tokens_total").inc(row["tokens"])
        metrics.counter("areal_trainer_skipped_steps_total").inc(0 if update.finite else 1)
        metrics.gauge("areal_trainer_policy_version").set(row["policy_version"])
        for phase in PHASES:
            if phase in seconds:
                metrics.histogram("areal_trainer_step_duration_seconds", phase=phase).observe(seconds[phase], exemplar)
        if row["reward_mean"] is not None:
            metrics.gauge("areal_trainer_reward_mean").set(row["reward_mean"])
        for name, value in row.get("figures", {}).items():
            if value is not None:
                metrics.gauge("areal_trainer_figure", figure=name).set(value)
        if row["staleness_max"] is not None:
            metrics.histogram("areal_trainer_staleness_steps").observe(row["staleness_max"])


def _rewards(tokens: TokenBatch, counted: np.ndarray[Any, np.dtype[np.bool_]]) -> np.ndarray[Any, Any]:
    """Reward of each sample that enters a mean: an episode of several sequences counts once."""
    sample = tokens.sample_of[counted]
    sequences, sums = np.bincount(sample), np.bincount(sample, tokens.rewards[counted])
    return np.asarray(sums[sequences > 0] / sequences[sequences > 0])


def _of_critic(figures: CriticFigures | None) -> dict[str, Any]:
    if figures is None:
        return {}
    return {
        "value_loss": figures.loss,
        "value_clip_ratio": figures.clip_ratio,
        "value_mean": figures.value_mean,
        "return_mean": figures.return_mean,
        "explained_variance": figures.explained_variance,
        "critic_grad_norm": figures.grad_norm,
        "critic_learning_rate": figures.learning_rate,
        "critic_updates": figures.applied,
    }


def _of_teacher(tokens: TokenBatch, advantages: Advantages) -> dict[str, Any]:
    policy, teacher = advantages.columns.proximal, advantages.columns.teacher_logprobs
    if policy is None or teacher is None:
        return {}
    trained = tokens.trainable() & advantages.trained[tokens.sequence_of]
    return {"teacher_kl": teacher_kl(trained, policy, teacher)}


def _staleness(step: int, tokens: TokenBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Age of each sample's oldest token that a gradient can reach, in versions, when this step trains it."""
    sampled = (tokens.versions >= 0) & tokens.trainable()
    sample = tokens.sample_of
    oldest = np.full(int(sample.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(oldest, sample[tokens.sequence_of[sampled]], tokens.versions[sampled])
    ages: np.ndarray[Any, np.dtype[np.int64]] = step - oldest[oldest < np.iinfo(np.int64).max]
    return ages


def _mean(values: np.ndarray[Any, Any]) -> float | None:
    return float(values.mean()) if values.size else None


def _spread(values: np.ndarray[Any, Any]) -> float | None:
    return float(values.std()) if values.size else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
