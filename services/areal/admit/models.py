"""Model directories of a job, each read once: config.json, the headers of the weights, the tokenizer.

Owns the one reader of config.json in front of a run, and what speaks against a model: as the start model, as a teacher,
as a reward model. Reads no weight.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal.errors import ConfigError, DataError
from areal.spec.job import JobSpec, RLJob
from areal.spec.model_families import refuse_untrainable
from areal.spec.teacher import PolicyTeacher
from areal.workflow.tokenizer import Tokenizer

_HEADER_BYTES = 100 << 20  # the format's own limit
_AGAIN = "copy or download the model again"


@dataclass(frozen=True)
class WeightFiles:
    """What the weights of a model directory say of themselves."""

    parameters: int
    matrices: frozenset[str]  # last part of their modules' names: q_proj, embed_tokens, …


@dataclass(frozen=True)
class ModelFolder:
    """A model as its directory tells it. `weights` is None where nobody asked for them."""

    path: Path
    config: Mapping[str, Any]
    weights: WeightFiles | None = None

    def number(self, key: str) -> int | None:
        """An entry of config.json; None for one that is missing, or no integer."""
        value = self.config.get(key)
        return value if isinstance(value, int) else None


def read_model(place: Path, *, weights: bool = False) -> ModelFolder:
    """A model's directory, or a config.json alone. Raises DataError for an unreadable or a cut off file."""
    file = place / "config.json" if place.is_dir() else place
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} can't be read: {error}", fix="save the model again") from None
    if not isinstance(loaded, dict):
        raise DataError(f"{file} holds no JSON object", fix="save the model again")
    return ModelFolder(place, loaded, look_at_weights(place) if weights else None)


def check_model(found: Path, where: str, *, weights: bool = True) -> Path:
    """The directory, when it holds a model, with `weights` or without; `where` is the field's place in the job file."""
    if not (found / "config.json").exists() or (weights and not any(found.glob("*.safetensors"))):
        raise ConfigError(
            f"{where}: {found} is no Hugging Face model: it needs config.json and *.safetensors",
            fix="Name the directory of a model saved with `save_pretrained`, or make one with `areal init-model`.",
        )
    return found


def check_tokenizer(found: Path, where: str) -> Path:
    """The directory, when it holds a tokenizer."""
    if not (found / "tokenizer.json").exists():
        raise ConfigError(
            f"{where}: there is no tokenizer.json in {found}",
            fix="Save a fast tokenizer there, or name its directory in model.tokenizer.",
        )
    return found


def served_elsewhere(job: RLJob) -> bool:
    """Whether the teacher is behind an address, so that its weights aren't the trainer's to load."""
    return isinstance(job.spec.teacher, PolicyTeacher) and job.spec.teacher.endpoint is not None


def refuse_teacher(spec: JobSpec, student: Tokenizer, model: ModelFolder, teacher: ModelFolder) -> None:
    """Raise DataError for a model that can't teach this job's student, which is `model` with this tokenizer."""
    refuse_untrainable(teacher.config, f"the teacher {teacher.path}")
    context, longest = teacher.number("max_position_embeddings"), spec.longest_sequence
    if context is not None and context < longest:
        limit = "rollout.maxSampleTokens" if spec.is_rl else "training.maxTokens"
        raise DataError(
            f"the teacher {teacher.path} reads {context} tokens, and {limit.rpartition('.')[2]} is {longest}",
            fix=f"lower {limit}, or name a teacher with a longer context",
        )
    refuse_other_tokens(student, teacher.path)
    if spec.is_rl:
        refuse_smaller_vocabulary(model.number("vocab_size"), teacher.number("vocab_size"), teacher.path)


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


def look_at_weights(model: Path) -> WeightFiles:
    """Read the headers of all `*.safetensors`; raises DataError for a file that is cut off or none of that format."""
    parameters = 0
    matrices: set[str] = set()
    for file in sorted(model.glob("*.safetensors")):
        tensors = _tensors(file)
        parameters += sum(math.prod(tensor["shape"]) for tensor in tensors.values())
        matrices |= {name.split(".")[-2] for name, each in tensors.items() if len(each["shape"]) == 2 and "." in name}
    return WeightFiles(parameters, frozenset(matrices))


def _tensors(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 0 < length <= _HEADER_BYTES:
                raise ValueError("its header has no length")
            header = json.loads(opened.read(length))
        tensors = {name: each for name, each in header.items() if name != "__metadata__"}
        needed = 8 + length + max((each["data_offsets"][1] for each in tensors.values()), default=0)
    except OSError as error:
        raise DataError(f"{file} can't be read: {error.strerror}", fix="check the file's permissions") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{file} is no safetensors file: {error}", fix=_AGAIN) from None
    if (there := file.stat().st_size) < needed:
        raise DataError(f"{file} is cut off: it has {there} of {needed} bytes", fix=_AGAIN)
    return tensors
