"""Model directories of a job, each read once: config.json, the headers of the weights, the tokenizer.

Owns the one reader of config.json in front of a run, and what speaks against a model: as the start model, as a teacher,
as a reward model. Reads no weight.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal.admit.weight_shapes import AGAIN, WeightFiles, look_at_shapes, read_weights
from areal.errors import ConfigError, DataError
from areal.spec.job import JobSpec, RLJob
from areal.spec.model_families import refuse_untrainable, text_part
from areal.spec.supervised import PolicyTeacher
from areal.workflow.tokenizer import Tokenizer

_SHOWN_FAULTS = 3
_KINDS = {"architectures": list, "model_type": str}


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
    for name, kind in _KINDS.items():
        if not isinstance(loaded.get(name), kind | None):
            raise DataError(f"{file}: {name} is {loaded[name]!r:.40}, no {kind.__name__}", fix="save the model again")
    return ModelFolder(place, loaded, read_weights(place) if weights else None)


def refuse_weights(model: ModelFolder) -> str:
    """Raise DataError where weights contradict their config.json. Answers what could not be looked at, or nothing."""
    if model.weights is None:
        return ""
    opinion = look_at_shapes(model.config, model.weights)
    if opinion.faults:
        more = len(opinion.faults) - _SHOWN_FAULTS
        shown = "; ".join(opinion.faults[:_SHOWN_FAULTS]) + (f"; and {more} more" if more > 0 else "")
        raise DataError(f"{model.path}: {shown}", fix=f"{AGAIN}, or the config.json that belongs to these weights")
    return opinion.unseen


def check_model(found: Path, where: str, *, weights: bool = True) -> Path:
    """The directory, when it holds a model, with `weights` or without; `where` is the field's place in the job file."""
    _refuse_adapter(found, where)
    if not (found / "config.json").exists() or (weights and not any(found.glob("*.safetensors"))):
        raise ConfigError(
            f"{where}: {found} is no Hugging Face model: it needs config.json and *.safetensors",
            fix="Name the directory of a model saved with `save_pretrained`, or make one with `areal init-model`.",
        )
    return found


def _refuse_adapter(found: Path, where: str) -> None:
    """Raise ConfigError for a directory that holds the matrices of an adapter and no model."""
    file = found / "adapter_config.json"
    whole = [path for path in found.glob("*.safetensors") if not path.name.startswith("adapter")]
    if not file.is_file() or whole:
        return
    try:
        base = json.loads(file.read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    raise ConfigError(
        f"{where}: {found} is a LoRA adapter{f' of {base}' if base else ''}, no whole model",
        fix="Merge it into its base model (peft's merge_and_unload) and name that directory; or name the base model, "
        "and train a new adapter with trainer.lora.",
    )


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


# ---- End tokens of a model: what its files and its chat template say of where an answer ends, compared


def refuse_ends(tokenizer: Tokenizer, model: ModelFolder) -> None:
    """Raise DataError for a configuration that ends answers by an id that the model doesn't have."""
    named = text_part(model.config).get("eos_token_id")
    size = text_part(model.config).get("vocab_size")
    for number in named if isinstance(named, list) else [named]:
        if isinstance(number, int) and isinstance(size, int) and not 0 <= number < size:
            raise DataError(
                f"{model.path / 'config.json'}: eos_token_id {number} is outside its vocabulary of {size}",
                fix="write the id of the token that ends an answer; tokenizer.json has it",
            )
    if not tokenizer.eos_ids:
        raise DataError(
            f"{model.path}: neither config.json, generation_config.json nor the tokenizer names a token that ends an "
            "answer: every answer would run to its last allowed token",
            fix="write eos_token_id into config.json, or eos_token into tokenizer_config.json",
        )


def ends_told(tokenizer: Tokenizer) -> str:
    """That template and files end an answer by different tokens, in words; nothing where they agree."""
    end = tokenizer.written_end
    named = [text for number in sorted(tokenizer.given_eos_ids) if (text := tokenizer.text_of(number))]
    if end is None or end in named or not named:
        return ""
    return f"answers end by the chat template's {end!r}, the model's files name {', '.join(map(repr, named))}: both end"
