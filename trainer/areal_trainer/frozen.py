"""Frozen models beside the policy: the KL reference and the teacher, placed as the job says.

Every rank has its share of each; an offloaded one's is in host memory while nobody asks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from areal.errors import BugError
from areal.spec.teacher import Placement
from areal.supervised.teacher import refuse_other_tokens, refuse_smaller_vocabulary
from areal.workflow.tokenizer import Tokenizer
from torch import Tensor

from areal_trainer.actor import Reference
from areal_trainer.data.micro_batches import MicroBatch
from areal_trainer.engine.engine import Engine
from areal_trainer.engine.group import Ranks
from areal_trainer.engine.offload import OffloadedParameters
from areal_trainer.settings import TrainerSettings


def reference_of(settings: TrainerSettings, engine: Engine, ranks: Ranks) -> Reference:
    """The start model's log-probabilities; an adapter's base is the start model."""
    if settings.adapter is not None:
        return engine.base_logprobs
    return placed(Engine(settings.paths.start_model, settings.engine, ranks), settings.actor.reference_placement)


def teacher_of(settings: TrainerSettings, engine: Engine, ranks: Ranks) -> Reference:
    """The log-probabilities of the model that the policy learns from. Raises DataError for one of other tokens."""
    paths = settings.paths
    if paths.teacher is None:
        raise BugError("a policy was to be taught without its teacher's directory")
    refuse_other_tokens(Tokenizer.from_dir(paths.tokenizer, model_dir=paths.start_model), paths.teacher)
    teacher = Engine(paths.teacher, settings.teacher_engine, ranks)
    refuse_smaller_vocabulary(engine.vocabulary, teacher.vocabulary, paths.teacher)
    return placed(teacher, settings.actor.teacher_placement)


def placed(model: Engine, placement: Placement) -> Reference:
    """A frozen model's log-probabilities, with its weights where they are to be."""
    return model.logprobs if placement == "same" else partial(_asked, model, OffloadedParameters(model.parameters()))


def _asked(model: Engine, weights: OffloadedParameters, micros: Sequence[MicroBatch], tokens: int) -> Tensor:
    with weights.on_device():
        return model.logprobs(micros, tokens)
