"""Facts beside the job file that rules need: recipe, dataset, tokenizer, model.

Owns where a job's files are, and the figures of model, tokenizer and prepared datasets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from areal.admit.prompts import measure_of
from areal.errors import DataError
from areal.plan import ResolvedJob, hub
from areal.spec import Facts, RLJob
from areal.spec.locate import locate


@dataclass(frozen=True)
class Sources:
    """Where a job's files are. None: it names none, or it isn't there."""

    recipe: Path | None = None
    model: Path | None = None
    tokenizer: Path | None = None
    train: Path | None = None  # rows as JSON lines
    evaluation: Path | None = None


def sources_of(job: RLJob, base_dir: Path) -> Sources:
    """What a job file names on this machine; relative paths as everywhere in a job."""
    spec = job.spec

    def found(path: str | None) -> Path | None:
        return locate(path, base_dir) if path else None

    uri = spec.model.uri
    model = found(spec.model.path) or (hub.cached(uri) if hub.is_hub(uri) else None)
    return Sources(
        recipe=found(spec.recipe.file) if spec.recipe else None,
        model=model,
        tokenizer=found(spec.model.tokenizer) if spec.model.tokenizer else model,
        train=found(spec.dataset.train.jsonl),
        evaluation=found(spec.dataset.evaluation.jsonl) if spec.dataset.evaluation else None,
    )


def sources_in_pods(resolved: ResolvedJob) -> Sources:
    """What a resolved job names on volumes and in this image."""
    dataset = resolved.dataset

    def found(path: Path | str | None) -> Path | None:
        return Path(path) if path is not None and Path(path).exists() else None

    return Sources(
        recipe=found(resolved.recipe_source),
        model=found(resolved.model_path),
        tokenizer=found(resolved.tokenizer_path),
        train=found(dataset.train.jsonl),
        evaluation=found(dataset.evaluation.jsonl) if dataset.evaluation else None,
    )


def with_snapshots(resolved: ResolvedJob) -> Facts:
    """What the prepared datasets tell, whatever they were made of: every prompt is measured."""
    from areal.data import Snapshot

    layout = resolved.layout
    train = Snapshot(layout.dataset / "train")
    prompts = measure_of(resolved.job, resolved.tokenizer_path, resolved.model_path)
    for index in range(len(train)):
        prompts.measure(f"{train.meta.source}, row {index + 1}", train.row(index))
    held_out = layout.dataset / "evaluation"
    return Facts(
        train_rows=len(train),
        train_columns=frozenset(train.columns),
        evaluation_rows=len(Snapshot(held_out)) if held_out.exists() else None,
        longest_prompt_tokens=prompts.longest,
        longest_prompt_place=prompts.place,
        prompts_too_long=prompts.too_long,
    )


def model_facts(model: Path, known: Facts) -> Facts:
    """What is known, and the model's vocabulary, context length and heads."""
    config = config_of(model)
    keys = ("vocab_size", "max_position_embeddings", "num_attention_heads", "num_key_value_heads")
    vocabulary, context, heads, kv_heads = (
        value if isinstance(value := config.get(key), int) else None for key in keys
    )
    return replace(
        known,
        model_vocabulary=vocabulary,
        model_context_tokens=context,
        model_attention_heads=heads,
        model_key_value_heads=heads if kv_heads is None else kv_heads,
    )


def tokenizer_facts(tokenizer: Path) -> int | None:
    """Largest token id + 1; raises DataError for an invalid file."""
    import tokenizers

    try:
        fast = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    except Exception as error:  # the library raises bare Exception
        file = tokenizer / "tokenizer.json"
        raise DataError(f"{file} is no tokenizer: {error}", fix="save the tokenizer again") from error
    return max(fast.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def config_of(model: Path) -> dict[str, Any]:
    """The config.json of a model's directory, or this very file; raises DataError when it can't be read."""
    file = model / "config.json" if model.is_dir() else model
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} can't be read: {error}", fix="save the model again") from None
    if not isinstance(loaded, dict):
        raise DataError(f"{file} holds no JSON object", fix="save the model again")
    return loaded
