"""Rank 0's side of a supervised run: fence, evidence, metrics, the role's server, and the model at the end."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from areal.data.fixed_order import Order
from areal.errors import FencedError
from areal.ledger import evidence as evidence_room
from areal.ledger import fences
from areal.ledger.evidence import EvidenceLog, FixedRows, TrainedGroup
from areal.net.server import GrpcServer
from areal.net.thread import LoopThread
from areal.observe.metrics import RoleMetrics
from areal.observe.progress import ProgressCounter
from areal.observe.waits import WaitRegistry
from areal.spec.job import JobSpec
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.values.policy import PolicyId
from areal.weights.adapter import ADAPTER_CONFIG
from areal.weights.exports import link_version
from areal.weights.publish import publish
from areal.weights.shards import DEFAULT_SHARD_BYTES
from areal.workflow.tokenizer import Tokenizer
from torch import Tensor

from areal_trainer.checkpoint.catalog import Began
from areal_trainer.checkpoint.saving import Saved
from areal_trainer.control import Telling, TrainerControl
from areal_trainer.engine.message import Message
from areal_trainer.engine.model import config_json
from areal_trainer.publish.files import score_config, side_files, sources
from areal_trainer.publish.merge import merge
from areal_trainer.run import Ports, copy_model
from areal_trainer.settings import Paths, adapter_of
from areal_trainer.trainings.reporting import Reporter

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SupervisedSettings:
    """One supervised trainer."""

    name: str
    spec: JobSpec
    paths: Paths
    dataset: Path
    cache: Path
    token: str
    bind: str = "127.0.0.1"


class Desk:
    """Rank 0's files, its server, and what it tells."""

    def __init__(self, settings: SupervisedSettings, ports: Ports) -> None:
        self._settings = settings
        self._ports = ports
        self._progress = ProgressCounter()
        self._metrics = RoleMetrics("trainer", settings.name)
        self._thread = LoopThread()
        self.telling = Telling()
        self._closing: list[Callable[[], None]] = [self._thread.stop]

    def history(self) -> list[Began]:
        """Where the trainers before began, as the evidence says."""
        starts = evidence_room.read(self._settings.paths.evidence).starts
        return [Began(start.fence, start.from_step) for start in starts]

    def restore(self) -> Message:
        """This trainer's fence, which all ranks must know."""
        self._fence = fences.allocate(self._settings.paths.fences, "trainer")
        return Message({"fence": self._fence}, {})

    def serve(self, steps: int) -> None:
        """Open the role's server: it is ready when the rows are."""
        self.telling.max_steps = steps
        self._metrics.serve(self._ports.metrics, self._settings.bind)
        waits = WaitRegistry("trainer")

        async def serve() -> GrpcServer:
            server = GrpcServer("trainer", self._settings.token, waits=waits, progress=self._progress)
            control = TrainerControl(self.telling, self._progress)
            server.add(operations_grpc.add_TrainerControlServicer_to_server, control, "areal.v1.TrainerControl")
            await server.start(self._ports.grpc, self._settings.bind)
            await server.set_ready(True)
            return server

        server = self._thread.call(serve(), 10.0)
        self._closing.append(lambda: self._thread.call(server.stop(0.2), 5.0))

    def start(self, step: int, order: Order, metric: str) -> None:
        """Leave evidence of this start, before any step of it. `metric` is what held-out rows are measured by."""
        settings, paths = self._settings, self._settings.paths
        self._evidence = EvidenceLog(paths.evidence, self._fence)
        self._evidence.start(step, order.batch, 1, FixedRows(order.rows, order.positions))
        self.reporter = Reporter(
            settings.spec.training, self._fence, paths.metrics, paths.evaluations, paths.tensorboard, self._metrics,
            metric,
        )  # fmt: skip
        self._closing += [self.reporter.close, self._evidence.close]
        self.telling.step = self.telling.checkpoint_step = step
        self._progress.policy_id = str(PolicyId(step, self._fence))

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
        self.reporter.step(step, figures, seconds)
        self.telling.step = step + 1
        self.telling.next_group = used[-1].group + 1
        self._progress.policy_id = str(PolicyId(step + 1, self._fence))
        self._progress.advance()

    def saved(self, saved: Saved) -> None:
        """A checkpoint is on disk."""
        self.reporter.checkpoint(saved.wall_s, saved.size_bytes)
        self.telling.checkpoint_step, self.telling.checkpoint_at = saved.position.step, saved.path.stat().st_mtime
        self._progress.advance()

    def still_mine(self) -> None:
        """Raise FencedError when a newer trainer has begun."""
        newest = fences.newest(self._settings.paths.fences, "trainer")
        if newest != self._fence:
            raise FencedError(f"trainer fence {self._fence} is over: {newest} has begun")

    def export(self, policy: PolicyId, tensors: Sequence[tuple[str, Tensor]]) -> None:
        """Write the final model whole, then say that the run is done."""
        with self._written(policy, tensors) as version:
            self._install(version, self._settings.paths.model, copy_model)
        if (exports := self._settings.paths.exports_of(self._settings.spec)) is not None:
            exports.tidy()
        self._evidence.finished(policy.version)
        self.telling.finished = True

    def export_due(self, step: int) -> bool:
        """Whether the model of this step is one to export."""
        exports = self._settings.paths.exports_of(self._settings.spec)
        return exports is not None and exports.lacks(PolicyId(step, self._fence))

    def export_step(self, policy: PolicyId, tensors: Sequence[tuple[str, Tensor]]) -> None:
        """Write the model of a step beside the others of the run."""
        exports = self._settings.paths.exports_of(self._settings.spec)
        assert exports is not None
        with self._written(policy, tensors) as version:
            exports.add(policy, lambda target: self._install(version, target, link_version))

    def _install(self, version: Path, target: Path, whole: Callable[[Path, Path], None]) -> None:
        """A written version as a model: as it is, or an adapter merged into the start model."""
        paths = self._settings.paths
        if adapter_of(self._settings.spec) is None:
            whole(version, target)
        else:
            merge(paths.start_model, paths.tokenizer, version, target)

    @contextlib.contextmanager
    def _written(self, policy: PolicyId, tensors: Sequence[tuple[str, Tensor]]) -> Iterator[Path]:
        """A model as a version that nobody serves, gone afterwards."""
        paths = self._settings.paths
        self.still_mine()
        self.doing("export")
        beside: dict[str, bytes | Path] = {**side_files(paths.start_model, paths.tokenizer)}
        if self._settings.spec.reward_model is not None:
            tokenizer = Tokenizer.from_dir(paths.tokenizer, model_dir=paths.start_model)
            beside = {**beside, "config.json": score_config(config_json(paths.start_model), tokenizer.eos_ids)}
            beside.pop("generation_config.json", None)
        room = DEFAULT_SHARD_BYTES
        if (adapter := adapter_of(self._settings.spec)) is not None:
            beside, room = {ADAPTER_CONFIG: adapter.to_bytes(str(paths.start_model))}, sys.maxsize  # one file
        publish(paths.weights, policy, sources(tensors), None, beside, shard_bytes=room)
        yield paths.weights / policy.directory
        shutil.rmtree(paths.weights / policy.directory, ignore_errors=True)

    def doing(self, phase: str) -> None:
        """Say in a word what goes on."""
        self._progress.doing = self.telling.phase = phase

    def close(self) -> None:
        """Give back everything that was opened, newest first."""
        for close in reversed(self._closing):
            try:
                close()
            except (OSError, TimeoutError) as error:
                _log.warning("closing: %s", error)
