"""One supervised run from start to end: restore, train on the rows in order, measure, save, export.

The checkpoint alone decides where the run is: a step's rows follow from its number. Evidence of a step is on disk
before a checkpoint can hold it, so that the audit sees each row used as often as asked whatever process dies.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from areal.data.fixed_order import Order
from areal.errors import ExitCode
from areal.ledger.evidence import TrainedGroup
from areal.observe.waits import WaitRegistry
from areal.values.policy import PolicyId
from areal.workflow.tokenizer import Tokenizer

from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.checkpoint.saving import Position, Saving
from areal_trainer.engine.engine import EngineOptions
from areal_trainer.engine.group import Ranks, first_works
from areal_trainer.engine.meeting import LOAD_DEADLINE_S, Meeting
from areal_trainer.engine.message import Message
from areal_trainer.options import adamw_options, schedule_of
from areal_trainer.run import Ports
from areal_trainer.settings import adapter_of
from areal_trainer.timer import PhaseTimer
from areal_trainer.trainings.desk import Desk, SupervisedSettings
from areal_trainer.trainings.kinds import RowsStep, kind_of
from areal_trainer.trainings.models import learner_of
from areal_trainer.trainings.rows import Rows

_log = logging.getLogger(__name__)


def run(settings: SupervisedSettings, ports: Ports, stopping: threading.Event) -> ExitCode:
    """Train until the last step, or until `stopping` is set. Every rank calls this."""
    mesh = settings.spec.trainer.mesh
    ranks = Ranks(mesh.replicate, mesh.tensor, mesh.context)
    desk = Desk(settings, ports) if ranks.first else None
    try:
        course = _Course(settings, ranks, desk, stopping)
        try:
            return course.run()
        finally:
            course.close()
    finally:
        if desk is not None:
            desk.close()
        ranks.close()


class _Course:
    """What every rank does."""

    def __init__(
        self, settings: SupervisedSettings, ranks: Ranks, desk: Desk | None, stopping: threading.Event
    ) -> None:
        spec, paths = settings.spec, settings.paths
        block = spec.supervised
        assert block is not None
        self._settings, self._ranks, self._desk, self._stopping = settings, ranks, desk, stopping
        numerics = EngineOptions(
            precision=spec.trainer.precision,
            attention=spec.trainer.attention_backend,
            recompute=spec.trainer.recompute,
            compile=spec.trainer.compile,
            fp32_head=spec.trainer.fp32_head,
            adapter=adapter_of(spec),
            seed=spec.seed,
            optimizer=adamw_options(spec),
        )
        loaded = Meeting(ranks, "loading the model", LOAD_DEADLINE_S)
        self._learner = learner_of(spec, paths, numerics, ranks)
        self._engine = self._learner.engine
        loaded.all_here(WaitRegistry("trainer"))
        tokenizer = Tokenizer.from_dir(paths.tokenizer, model_dir=paths.start_model)
        self._train = Rows(settings.dataset / "train", tokenizer, spec)
        held_out = settings.dataset / "evaluation"
        self._held_out = Rows(held_out, tokenizer, spec) if held_out.exists() else None
        self._order = Order.of(block, len(self._train), spec.seed)
        self._schedule = schedule_of(spec, spec.optimizer.learning_rate)
        self._kind = kind_of(spec, self._learner, settings.cache, _model_digest(paths.start_model))
        self._checkpointer = Checkpointer(paths.checkpoints, spec.checkpoint.keep, self._engine)
        self._saving: Saving | None = None  # on rank 0: the checkpoint that nobody was told of yet
        self._timer = PhaseTimer()

    def close(self) -> None:
        """Give back the thread that writes; what runs is finished."""
        self._checkpointer.close()

    def run(self) -> ExitCode:
        """The whole run."""
        desk, order = self._desk, self._order
        found = self._checkpointer.newest(desk.history() if desk is not None else [])
        self._fence = int(self._ranks.tell(desk.restore() if desk is not None else None).header["fence"])
        if desk is not None:
            self._timer.doing = desk.doing
            desk.serve(order.steps)
        with self._timer.phase("reference"):
            self._kind.prepare(
                self._train, sorted({order.row(place) for place in range(min(order.positions, order.rows))})
            )
            if self._held_out is not None:
                self._kind.prepare(self._held_out, self._evaluated())
        step = 0
        if found is not None:
            self._checkpointer.load(found)
            _log.info("goes on from %s", found.path.name)
            step = found.record.step
        if desk is not None:
            desk.start(step, order, self._kind.metric)
        if step == 0 and self._settings.spec.evaluation.at_start:
            self._evaluate(0)
        saved = step
        while step < order.steps:
            if self._stopped():
                self._save(step, saved)
                self._saved()
                return ExitCode.DRAINED
            self._step(step)
            self._note_saved()
            step += 1
            if step % self._settings.spec.evaluation.interval_steps == 0 or step == order.steps:
                self._evaluate(step)
            self._export_step(step)
            if step % self._settings.spec.checkpoint.interval_steps == 0:
                saved = self._save(step, saved)
        self._save(step, saved)
        self._saved()
        self._export(step)
        return ExitCode.DONE

    def _step(self, step: int) -> None:
        span = self._order.span(step)
        rows = [self._order.row(position) for position in span]
        rate = self._schedule.at(step, self._order.steps)
        with self._timer.phase("train"):
            batch = self._train.batch(rows)
            run = RowsStep(self._settings.spec, self._kind, self._learner, self._train, rows, batch)
            aim, update = run.learn(rate)
        if self._desk is None:
            return
        figures = {
            "loss": update.loss if aim.loss is None else aim.loss,
            "epoch": self._order.epoch(step),
            "rows": len(rows),
            "tokens": batch.tokens,
            "trained_tokens": int((batch.trainable() & (aim.weights != 0)).sum()),
            "truncated": self._train.truncated,
            "grad_norm": update.grad_norm,
            "learning_rate": rate,
            "updates": int(update.applied),
            "skipped_updates": int(not update.applied),
            **aim.figures,
        }
        used = [
            TrainedGroup(place, ((row, self._train.fingerprint(row)),)) for place, row in zip(span, rows, strict=True)
        ]
        self._desk.trained(step, used, figures, self._timer.take(), applied=update.applied)

    def _evaluated(self) -> Sequence[int]:
        assert self._held_out is not None
        wanted = self._settings.spec.evaluation.rows
        return range(len(self._held_out) if wanted is None else min(wanted, len(self._held_out)))

    def _evaluate(self, version: int) -> None:
        if self._held_out is None:
            return
        with self._timer.phase("evaluate"):
            figures = self._kind.measure(self._held_out, self._evaluated())
        if self._desk is not None:
            self._desk.reporter.evaluated(version, len(self._evaluated()), figures)

    def _stopped(self) -> bool:
        """Whether rank 0 was asked to stop; every rank gets its answer."""
        message = Message({"stop": self._stopping.is_set()}, {}) if self._desk else None
        return bool(self._ranks.tell(message).header["stop"])

    def _save(self, step: int, saved: int) -> int:
        """Begin a checkpoint unless the newest one is of this step. The one before is on disk when this returns."""
        if step == saved:
            return saved
        position = Position(step, self._order.span(step).start, 0, self._fence)
        desk = self._desk
        with self._timer.phase("checkpoint"):
            saving = self._checkpointer.save(position, desk.still_mine if desk is not None else lambda: None)
        self._note_saved()
        self._saving = saving
        return step

    def _note_saved(self) -> None:
        """Rank 0 tells of a checkpoint once it is on disk. Raises what went wrong with writing it."""
        if self._desk is not None and self._saving is not None and (saved := self._saving.done()) is not None:
            self._desk.saved(saved)
            self._saving = None

    def _saved(self) -> None:
        """Wait until the checkpoint under way is on disk."""
        with self._timer.phase("checkpoint"):
            self._checkpointer.wait()
        self._note_saved()

    def _export_step(self, step: int) -> None:
        """The model of a step as a Hugging Face directory, where the job asks for it."""
        wanted = Message({"due": self._desk.export_due(step)}, {}) if self._desk is not None else None
        if self._settings.spec.export is None or not self._ranks.tell(wanted).header["due"]:
            return
        with self._timer.phase("checkpoint"):
            tensors = [pair for pair in self._engine.export() if self._desk is not None]
            policy, desk = PolicyId(step, self._fence), self._desk
            first_works(self._ranks, partial(desk.export_step, policy, tensors) if desk is not None else None)

    def _export(self, step: int) -> None:
        """The final model as a Hugging Face directory."""
        tensors = [pair for pair in self._engine.export() if self._desk is not None]
        if self._desk is not None:
            self._desk.export(PolicyId(step, self._fence), tensors)


def _model_digest(model: Path) -> str:
    """Names a start model by its configuration and the sizes of its files."""
    facts = [(path.name, path.stat().st_size) for path in sorted(model.glob("*.safetensors"))]
    return hashlib.sha256((model / "config.json").read_bytes() + repr(facts).encode()).hexdigest()
