"""A job's files, looked at as the run will read them, before anything is written.

Owns the order: recipe, model, tokenizer, rows. Imports the recipe elsewhere (`recipe_probe`), reads rows with the
reader of `prepare`. Promises that each fault is found at its file and line, and says what it didn't look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as made
from pathlib import Path

from areal.admit.datasets import located, required_columns
from areal.admit.facts import Sources, model_facts, tokenizer_facts
from areal.admit.prompts import measure_of
from areal.admit.recipe_probe import SLOW_S, RecipeParts, probe
from areal.admit.regular_files import refuse_pipes
from areal.admit.resolve import check_model, check_tokenizer, verifier_of
from areal.admit.weight_files import WeightFiles, look_at_weights
from areal.data.peek import peek
from areal.data.source import HuggingFaceSource, JsonlSource, ReasoningGymSource, RecipeSource
from areal.errors import ArealError, DataError
from areal.plan.hub import is_hub
from areal.spec import Facts, RLJob
from areal.spec.sources import DatasetSource

_ROWS = 200_000  # of a file
_SECONDS = 1.0  # of processor time for the rows of one split
_GENERATED = 32  # rows of a source that makes them, or of a library's


@dataclass
class Looked:
    """What was found. `faults`: dotted field → what a run would stop at; `unseen`: what was not looked at."""

    facts: Facts = made(default_factory=Facts)
    faults: list[tuple[str, ArealError]] = made(default_factory=list)
    unseen: list[str] = made(default_factory=list)
    warnings: list[tuple[str, str, str]] = made(default_factory=list)  # field, message, fix
    weights: WeightFiles | None = None

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Collect what is wrong with one field."""
        try:
            yield
        except ArealError as error:
            self.faults.append((place, error))


def look(job: RLJob, sources: Sources, base_dir: Path) -> Looked:
    """Look at everything that a job names and that is on this machine."""
    looked = Looked()
    parts = _recipe(looked, job, sources)
    _model(looked, job, sources)
    for split, source in (("train", job.spec.dataset.train), ("evaluation", job.spec.dataset.evaluation)):
        if source is not None and len(source.given) == 1:
            with looked.at(f"spec.dataset.{split}"):
                _rows(looked, job, sources, base_dir, split, source, parts)
    return looked


def _recipe(looked: Looked, job: RLJob, sources: Sources) -> RecipeParts | None:
    if sources.recipe is None:
        return None
    with looked.at("spec.recipe.file"):
        refuse_pipes(sources.recipe)
        parts = probe(sources.recipe, spec=job.spec)
        looked.facts = replace(
            looked.facts,
            recipe_defines_reward=parts.reward,
            recipe_workflows=parts.workflows,
            recipe_agents=parts.agents,
        )
        if parts.seconds > SLOW_S:
            message = f"importing the recipe takes {parts.seconds:.0f} s of processor time in every worker"
            looked.warnings.append(("spec.recipe.file", message, "Do slow work inside functions, not at import."))
        return parts
    return None


def _model(looked: Looked, job: RLJob, sources: Sources) -> None:
    model, tokenizer = sources.model, sources.tokenizer
    if model is None and is_hub(job.spec.model.uri):
        looked.unseen.append(f"model: {job.spec.model.uri} isn't on this machine; `areal run` downloads it")
    if model is not None:
        with looked.at("spec.model.path"):
            refuse_pipes(*model.glob("*"))
            check_model(model, job.where("spec.model.path"))
            looked.weights = look_at_weights(model)
            looked.facts = replace(
                model_facts(model, looked.facts),
                model_parameters=looked.weights.parameters,
                model_matrices=looked.weights.matrices,
            )
    if tokenizer is not None and (model is None or tokenizer != model or (model / "config.json").is_file()):
        field = "spec.model.tokenizer" if job.spec.model.tokenizer else "spec.model.path"
        with looked.at(field):
            refuse_pipes(tokenizer / "tokenizer.json")
            check_tokenizer(tokenizer, job.where(field))
            looked.facts = replace(looked.facts, tokenizer_vocabulary=tokenizer_facts(tokenizer))


def _rows(
    looked: Looked,
    job: RLJob,
    sources: Sources,
    base_dir: Path,
    split: str,
    source: DatasetSource,
    parts: RecipeParts | None,
) -> None:
    file = sources.train if split == "train" else sources.evaluation
    if file is not None:
        source = source.model_copy(update={"jsonl": str(file)})
    named = located(source, base_dir, sources.recipe or Path("recipe"), split)
    limit = _GENERATED
    match named:
        case JsonlSource(path):
            if not path.exists():
                return  # another rule's business
            if not path.is_file():
                raise DataError(f"{path} is no file", fix="Name a file of JSON rows, one a line.")
            limit = _ROWS
        case RecipeSource():
            looked.unseen.append(f"dataset.{split}: the rows of the recipe are made when the run is prepared")
            return
        case HuggingFaceSource(path=name) if not Path(name).exists():
            looked.unseen.append(f"dataset.{split}: {name} on the Hugging Face hub")
            return
        case ReasoningGymSource() | HuggingFaceSource():
            pass
    verifier = job.spec.reward.verifier or ("custom" if parts is not None and parts.reward else None)
    if sources.recipe is not None and job.spec.reward.verifier is None and parts is None:
        verifier = verifier_of(job, sources.recipe)
    needed = parts.needs if parts is not None else ()
    readable = not any(field.startswith("spec.model") for field, _ in looked.faults)
    prompts = measure_of(job, sources.tokenizer if readable else None, sources.model)
    seen = peek(
        named,
        required=required_columns(job, verifier, needed),
        limit=limit,
        seconds=_SECONDS,
        each=prompts.measure,
    )
    rows = seen.rows if seen.whole else _size(named)
    if not seen.whole:
        of = f"of {rows:,} rows" if rows is not None else "rows"
        looked.unseen.append(f"dataset.{split}: only the first {seen.rows:,} {of} were read")
    if split == "evaluation":
        looked.facts = replace(looked.facts, evaluation_rows=rows)
        return
    looked.facts = replace(
        looked.facts,
        train_rows=rows,
        train_columns=seen.columns,
        longest_prompt_tokens=prompts.longest,
        longest_prompt_place=prompts.place,
        prompts_too_long=prompts.too_long,
    )


def _size(source: object) -> int | None:
    """How many rows a source has that wasn't read to its end, where that is cheap to know."""
    return source.size if isinstance(source, ReasoningGymSource) else None
