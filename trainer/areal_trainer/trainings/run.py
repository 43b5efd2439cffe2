"""Batches of fixed rows, with the model that learns them: train on the rows in order, measure, save, export.

The checkpoint alone decides where the run is: a step's rows follow from its number. Evidence of a step is on disk
before a checkpoint can hold it, so that the audit sees each row used as often as asked whatever process dies.
"""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from areal.admit.models import refuse_other_tokens
from areal.data.order import FixedOrder
from areal.errors import BugError, ExitCode
from areal.ledger.evidence import TrainedGroup
from areal.observe.waits import WaitRegistry
from areal.spec.job import JobSpec
from areal.values.policy import PolicyId
from areal.workflow.tokenizer import Tokenizer
from torch import Tensor

from areal_trainer.checkpoint.catalog import FoundCheckpoint
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.checkpoint.saving import RunPosition
from areal_trainer.engine.divergence import Divergence
from areal_trainer.engine.engine import ModelOptions, PolicyEngine, ValueEngine
from areal_trainer.engine.group import RankGroup, first_works
from areal_trainer.engine.meeting import LOAD_DEADLINE_S, Meeting
from areal_trainer.engine.model import config_json, score_architecture
from areal_trainer.options import schedule_of
from areal_trainer.settings import RowsSettings, TrainerPaths, model_options
from areal_trainer.spans import PhaseTimer
from areal_trainer.trainings.desk import RowsDesk
from areal_trainer.trainings.kinds import Learner, PreparedRows, RowsStep, kind_of


class RowBatches:
    """A run on fixed rows: what every rank does."""

    def __init__(
        self, settings: RowsSettings, ranks: RankGroup, desk: RowsDesk, waits: WaitRegistry, stopping: threading.Event
    ) -> None:
        """Loads the model and the rows. `desk` is a null object on other ranks than 0."""
        spec, paths = settings.spec, settings.paths
        block = spec.supervised
        assert block is not None
        self._settings, self._ranks, self._desk, self._stopping = settings, ranks, desk, stopping
        loaded = Meeting(ranks, "loading the model", LOAD_DEADLINE_S)
        self._learner = learner_of(spec, paths, model_options(spec), ranks)
        self._engine = self._learner.engine
        loaded.all_here(waits)
        tokenizer = Tokenizer.from_dir(paths.tokenizer, model_dir=paths.start_model, job=spec.model)
        self._train = PreparedRows(settings.dataset / "train", tokenizer, spec)
        held_out = settings.dataset / "evaluation"
        self._held_out = PreparedRows(held_out, tokenizer, spec) if held_out.exists() else None
        self._order = FixedOrder.of(block, self._train.order(spec.seed))
        self._schedule = schedule_of(spec, spec.optimizer.learning_rate)
        self._training = kind_of(spec, self._learner, settings.cache, _model_digest(paths.start_model))
        self.checkpointer = Checkpointer(paths.checkpoints, spec.checkpoint.keep, self._engine)
        self._timer = PhaseTimer()

    def close(self) -> None:
        """Give back the thread that writes; what runs is finished."""
        self.checkpointer.close()

    def prepare(self) -> None:
        """The start model says what a training needs of it, for all rows that will be used."""
        order = self._order
        self._timer.doing = self._desk.doing
        self._desk.open(order.steps)
        with self._timer.phase("reference"):
            used = sorted({order.row(place) for place in range(min(order.positions, order.rows))})
            self._training.prepare(self._train, used)
            if self._held_out is not None:
                self._training.prepare(self._held_out, self._evaluated())

    def begin(self, fence: int, found: FoundCheckpoint | None) -> None:
        """Leave evidence of where this trainer begins."""
        self._fence = fence
        self._began = found.record.step if found is not None else 0
        self._desk.start(self._began, self._order, self._training.metric)

    def train(self) -> ExitCode:
        """Every row in its order; the model is saved, measured and exported as the job says."""
        order, spec = self._order, self._settings.spec
        step = saved = self._began
        if step == 0 and spec.evaluation.at_start:
            self._evaluate(0)
        while step < order.steps:
            if self._ranks.tell(self._desk.asked_to_stop(self._stopping)).header["stop"]:
                self._save(step, saved)
                self._saved()
                return ExitCode.DRAINED
            self._step(step)
            self._desk.note_saved()
            step += 1
            if step % spec.evaluation.interval_steps == 0 or step == order.steps:
                self._evaluate(step)
            self._export_step(step)
            if step % spec.checkpoint.interval_steps == 0:
                saved = self._save(step, saved)
        self._save(step, saved)
        self._saved()
        self._desk.export(PolicyId(step, self._fence), self._exported())
        return ExitCode.DONE

    def _step(self, step: int) -> None:
        span = self._order.span(step)
        rows = [self._order.row(position) for position in span]
        rate = self._schedule.at(step, self._order.steps)
        with self._timer.phase("train"):
            batch = self._train.batch(rows)
            run = RowsStep(self._settings.spec, self._training, self._learner, self._train, rows, batch)
            aim, update = run.learn(rate)
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
            **self._engine.routers.figures(),
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
            figures = self._training.measure(self._held_out, self._evaluated())
        self._desk.evaluated(version, len(self._evaluated()), figures)

    def _save(self, step: int, saved: int) -> int:
        """Begin a checkpoint unless the newest one is of this step. The one before is on disk when this returns."""
        if step == saved:
            return saved
        position = RunPosition(step, self._fence)
        with self._timer.phase("checkpoint"):
            saving = self.checkpointer.save(position, self._desk.still_mine)
        self._desk.note_saved()
        self._desk.began(saving)
        return step

    def _saved(self) -> None:
        """Wait until the checkpoint under way is on disk."""
        with self._timer.phase("checkpoint"):
            self.checkpointer.wait()
        self._desk.note_saved()

    def _export_step(self, step: int) -> None:
        """The model of a step as a Hugging Face directory, where the job asks for it."""
        if self._settings.spec.export is None or not self._ranks.tell(self._desk.export_due(step)).header["due"]:
            return
        with self._timer.phase("checkpoint"):
            policy, tensors = PolicyId(step, self._fence), self._exported()
            first_works(self._ranks, lambda: self._desk.export_step(policy, tensors))

    def _exported(self) -> list[tuple[str, Tensor]]:
        """All weights, on rank 0 alone. A collective."""
        return [pair for pair in self._engine.export() if self._ranks.first]


def _model_digest(model: Path) -> str:
    """Names a start model by its configuration and the sizes of its files."""
    facts = [(path.name, path.stat().st_size) for path in sorted(model.glob("*.safetensors"))]
    return hashlib.sha256((model / "config.json").read_bytes() + repr(facts).encode()).hexdigest()


def learner_of(spec: JobSpec, paths: TrainerPaths, options: ModelOptions, ranks: RankGroup) -> Learner:
    """Load the models of a job. A collective. Raises DataError for a model that the training can't have."""
    cut = (spec.trainer.micro_batch_tokens, spec.trainer.row_tokens)
    if spec.reward_model is not None:
        score_architecture(config_json(paths.start_model))  # or the run would end without a model
        scorer = ValueEngine(paths.start_model, options, ranks)
        return Learner(scorer, scorer.forward, *cut)
    engine = PolicyEngine(paths.start_model, options, ranks)
    if spec.distillation is None:
        return Learner(engine, lambda micro: engine.forward(micro)[0], *cut)
    if paths.teacher is None:
        raise BugError("a student was asked for without its teacher's directory")
    refuse_other_tokens(Tokenizer.from_dir(paths.tokenizer, model_dir=paths.start_model), paths.teacher)
    teacher = PolicyEngine(paths.teacher, replace(options, router=(0.0, 0.0)), ranks)  # frozen: never has a gradient
    block = spec.distillation
    measure = Divergence(block.divergence, block.temperature, block.teacher_share)
    return Learner(engine, lambda micro: engine.divergence(micro, teacher, measure), *cut)
