"""The teacher of a distillation, on fixed rows or on own samples: whether it speaks of the student's tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from areal.errors import DataError
from areal.spec.job import JobSpec
from areal.spec.model_families import refuse_untrainable
from areal.workflow.tokenizer import Tokenizer


def refuse_teacher(spec: JobSpec, student: Tokenizer, model: Path, teacher: Path) -> None:
    """Raise DataError for a model that can't teach this job's student, which is `model` with this tokenizer."""
    config = _config(teacher)
    refuse_untrainable(config, f"the teacher {teacher}")
    context, longest = config.get("max_position_embeddings"), spec.longest_sequence
    if isinstance(context, int) and context < longest:
        limit = "rollout.maxSampleTokens" if spec.is_rl else "training.maxTokens"
        raise DataError(
            f"the teacher {teacher} reads {context} tokens, and {limit.rpartition('.')[2]} is {longest}",
            fix=f"lower {limit}, or name a teacher with a longer context",
        )
    refuse_other_tokens(student, teacher)
    if spec.is_rl:
        refuse_smaller_vocabulary(vocabulary_of(model), vocabulary_of(teacher), teacher)


def refuse_other_tokens(student: Tokenizer, teacher: Path) -> None:
    """Raise DataError unless each id is the same token to both: a divergence compares id by id."""
    mine, others = student.vocabulary, Tokenizer.from_dir(teacher).vocabulary
    if mine == others:
        return
    place = next(id for id in sorted({*mine, *others}) if mine.get(id) != others.get(id))
    named = [f"is {tokens[place]!r}" if place in tokens else "is no token" for tokens in (others, mine)]
    raise DataError(
        f"the teacher {teacher} has another tokenizer than the student: id {place} {named[0]} there, {named[1]} here",
        fix="take teacher and student of one family, with the same tokenizer.json",
    )


def refuse_smaller_vocabulary(student: int | None, teacher: int | None, place: Path) -> None:
    """Raise DataError when a student may sample an id that the teacher has no embedding of."""
    if student is not None and teacher is not None and teacher < student:
        raise DataError(
            f"the teacher {place} has {teacher} tokens with padding, the student {student}: of the ids that only the "
            "student has the teacher can't say how likely they are",
            fix="take a teacher with as many rows in its embedding, or pad it with rows",
        )


def vocabulary_of(model: Path) -> int | None:
    """How many token ids a model's directory says it has an embedding of."""
    found = _config(model).get("vocab_size")
    return found if isinstance(found, int) else None


def _config(model: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((model / "config.json").read_bytes())
    return config
