"""Rank 0's desk of a run on fixed rows: evidence of rows, metrics, and the model at the end.

Metrics are rows of `metrics.jsonl` and `evaluations.jsonl`, TensorBoard's and Prometheus'.
"""

import contextlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from areal.data.order import FixedOrder
from areal.files import append_lines
from areal.ledger.evidence import EvidenceLog, FixedRows, TrainedGroup
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import WaitRegistry
from areal.values.policy import PolicyId
from areal.weights.adapter import ADAPTER_CONFIG
from areal.weights.exports import link_version
from areal.weights.publish import publish
from areal.weights.shards import DEFAULT_SHARD_BYTES
from areal.workflow.tokenizer import Tokenizer
from torch import Tensor

from areal_trainer.checkpoint.saving import Saving
from areal_trainer.desk import Desk, TrainerPorts, copy_model
from areal_trainer.engine.group import RankMessage
from areal_trainer.engine.model import config_json
from areal_trainer.publish.exporter import merge, score_config, side_files, sources
from areal_trainer.reporting import StepLog
from areal_trainer.settings import RowsSettings, adapter_of


class RowsDesk(Desk):
    """Rank 0's files, its server, and what it tells."""

    def __init__(self, settings: RowsSettings, ports: TrainerPorts, waits: WaitRegistry) -> None:
        super().__init__(settings, ports, waits)
        self._settings = settings
        self._saving: Saving | None = None  # the checkpoint that nobody was told of yet

    def open(self, steps: int) -> None:
        """Open the role's server: the rows are there."""
        self.telling.max_steps = steps
        self.serve()
        self.ready()

    def start(self, step: int, order: FixedOrder, metric: str) -> None:
        """Leave evidence of this start, before any step of it. `metric` is what held-out rows are measured by."""
        settings, paths = self._settings, self.paths
        self._evidence = EvidenceLog(paths.evidence, self.fence)
        self._evidence.start(step, order.batch, 1, FixedRows(order.rows, order.positions, order.sources))
        self._reporter = RowsReporter(
            settings.spec.training, self.fence, paths.metrics, paths.evaluations, paths.tensorboard, self.metrics,
            metric,
        )  # fmt: skip
        self.closing += [self._reporter.close, self._evidence.close]
        self.progress.policy_id = str(PolicyId(step, self.fence))

    def trained(
        self, step: int, used: Sequence[TrainedGroup], figures: Mapping[str, object], seconds: Mapping[str, float], *,
        applied: bool,
    ) -> None:  # fmt: skip
        """A step's gradient is in the weights, or was left out."""
        if applied:
            self._evidence.trained(step, used)
        else:
            self._evidence.skipped(step, used)
            self.telling.skipped_steps += 1
        self._reporter.step(step, figures, seconds)
        self.telling.step = step + 1
        self.progress.policy_id = str(PolicyId(step + 1, self.fence))
        self.progress.advance()

    def evaluated(self, version: int, rows: int, figures: Mapping[str, float]) -> None:
        """Held-out rows were measured under one version."""
        self._reporter.evaluated(version, rows, figures)

    def began(self, saving: Saving) -> None:
        """A checkpoint is being written."""
        self._saving = saving

    def note_saved(self) -> None:
        """Tell of a checkpoint once it is on disk. Raises what went wrong with writing it."""
        if self._saving is None or (saved := self._saving.done()) is None:
            return
        self._saving = None
        self._reporter.checkpoint(saved)
        self.telling.checkpoint_step, self.telling.checkpoint_at = saved.position.step, saved.path.stat().st_mtime
        self.progress.advance()

    def asked_to_stop(self, stopping: threading.Event) -> RankMessage:
        """Whether this run ends before its last step."""
        return RankMessage({"stop": stopping.is_set()}, {})

    def export(self, policy: PolicyId, tensors: Sequence[tuple[str, Tensor]]) -> None:
        """Write the final model whole, then say that the run is done."""
        with self._written(policy, tensors) as version:
            self._install(version, self.paths.model, copy_model)
        if (exports := self.paths.exports_of(self._settings.spec)) is not None:
            exports.tidy()
        self._evidence.finished(policy.version)
        self.telling.finished = True

    def export_due(self, step: int) -> RankMessage:
        """Whether the model of this step is one to export."""
        exports = self.paths.exports_of(self._settings.spec)
        return RankMessage({"due": exports is not None and exports.lacks(PolicyId(step, self.fence))}, {})

    def export_step(self, policy: PolicyId, tensors: Sequence[tuple[str, Tensor]]) -> None:
        """Write the model of a step beside the others of the run."""
        exports = self.paths.exports_of(self._settings.spec)
        assert exports is not None
        with self._written(policy, tensors) as version:
            exports.add(policy, lambda target: self._install(version, target, link_version))

    def _install(self, version: Path, target: Path, whole: Callable[[Path, Path], None]) -> None:
        """A written version as a model: as it is, or an adapter merged into the start model."""
        paths = self.paths
        if adapter_of(self._settings.spec) is None:
            whole(version, target)
        else:
            merge(paths.start_model, paths.tokenizer, version, target, self._settings.spec.model.chat_template)

    @contextlib.contextmanager
    def _written(self, policy: PolicyId, tensors: Sequence[tuple[str, Tensor]]) -> Iterator[Path]:
        """A model as a version that nobody serves, gone afterwards."""
        paths = self.paths
        self.still_mine()
        self.doing("export")
        beside = side_files(paths.start_model, paths.tokenizer, self._settings.spec.model.chat_template)
        if self._settings.spec.reward_model is not None:
            tokenizer = Tokenizer.from_dir(paths.tokenizer, model_dir=paths.start_model, job=self._settings.spec.model)
            beside = {**beside, "config.json": score_config(config_json(paths.start_model), tokenizer.eos_ids)}
            beside.pop("generation_config.json", None)
        room = DEFAULT_SHARD_BYTES
        if (adapter := adapter_of(self._settings.spec)) is not None:
            beside, room = {ADAPTER_CONFIG: adapter.to_bytes(str(paths.start_model))}, sys.maxsize  # one file
        publish(paths.weights, policy, sources(tensors), None, beside, shard_bytes=room)
        yield paths.weights / policy.directory
        shutil.rmtree(paths.weights / policy.directory, ignore_errors=True)


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
