"""The teacher of a distillation: whether its distributions are over the student's tokens."""

from __future__ import annotations

import json
from pathlib import Path

from areal.errors import DataError
from areal.spec.model_families import refuse_untrainable
from areal.workflow.tokenizer import Tokenizer


def refuse_teacher(student: Tokenizer, teacher: Path, max_tokens: int) -> None:
    """Raise DataError for a model that can't teach rows of so many tokens to a student with this tokenizer."""
    config = json.loads((teacher / "config.json").read_bytes())
    refuse_untrainable(config, f"the teacher {teacher}")
    context = config.get("max_position_embeddings")
    if isinstance(context, int) and context < max_tokens:
        raise DataError(
            f"the teacher {teacher} reads {context} tokens, and maxTokens is {max_tokens}",
            fix="lower distillation.maxTokens, or name a teacher with a longer context",
        )
    refuse_other_tokens(student, teacher)


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
