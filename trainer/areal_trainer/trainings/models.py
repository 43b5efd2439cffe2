"""The models of a training on fixed rows: the one that learns, and what its outputs are."""

from __future__ import annotations

from areal.admit.teacher import refuse_other_tokens
from areal.errors import BugError
from areal.spec.job import JobSpec
from areal.workflow.tokenizer import Tokenizer

from areal_trainer.engine.divergence import Divergence
from areal_trainer.engine.engine import Engine, EngineOptions
from areal_trainer.engine.group import Ranks
from areal_trainer.engine.model import config_json, score_architecture
from areal_trainer.engine.value_engine import ValueEngine
from areal_trainer.settings import Paths
from areal_trainer.trainings.learner import Learner


def learner_of(spec: JobSpec, paths: Paths, options: EngineOptions, ranks: Ranks) -> Learner:
    """Load the models of a job. A collective. Raises DataError for a model that the training can't have."""
    trainer = spec.trainer
    if spec.reward_model is not None:
        score_architecture(config_json(paths.start_model))  # or the run would end without a model
        scorer = ValueEngine(paths.start_model, options, ranks)
        return Learner(scorer, scorer.forward, trainer.micro_batch_tokens, trainer.pack_length)
    engine = Engine(paths.start_model, options, ranks)
    if spec.distillation is None:
        return Learner(engine, lambda micro: engine.forward(micro)[0], trainer.micro_batch_tokens, trainer.pack_length)
    if paths.teacher is None:
        raise BugError("a student was asked for without its teacher's directory")
    refuse_other_tokens(Tokenizer.from_dir(paths.tokenizer, model_dir=paths.start_model), paths.teacher)
    teacher = Engine(paths.teacher, options, ranks)  # frozen: no pass of it ever has a gradient
    block = spec.distillation
    measure = Divergence(block.divergence, block.temperature, block.teacher_share)
    return Learner(
        engine, lambda micro: engine.divergence(micro, teacher, measure), trainer.micro_batch_tokens,
        trainer.pack_length,
    )  # fmt: skip
