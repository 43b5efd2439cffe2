"""What is known beside the job file, for the rules that need it: recipe, dataset, tokenizer, model.

Reads files and imports the recipe elsewhere (`recipe_probe`). What can't be known cheaply stays unknown; a file that is
missing is another rule's business. Prompts are measured on the first rows only, which finds the usual mistake.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from areal.errors import ArealError
from areal.plan import ResolvedJob
from areal.spec import Facts, RLJob
from areal.spec.locate import locate
from areal.stage.recipe_probe import probe

_SAMPLE_ROWS = 256  # prompts to tokenize: a few milliseconds
_COUNT_LIMIT = 1 << 30  # bytes of a file whose lines are still counted


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

    model = found(spec.model.path)
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


def gather(job: RLJob, sources: Sources) -> Facts:
    """All that is known before anything is prepared. Raises DataError for a recipe that doesn't import."""
    facts = Facts()
    if sources.recipe is not None:
        parts = probe(sources.recipe)
        facts = replace(facts, recipe_defines_reward=parts.reward, recipe_workflows=parts.workflows)
    vocabulary, context = _of_model(sources.model)
    facts = replace(
        facts,
        model_vocabulary=vocabulary,
        model_context_tokens=context,
        tokenizer_vocabulary=_of_tokenizer(sources.tokenizer),
    )
    if sources.train is not None:
        rows = _head(sources.train)
        facts = replace(
            facts,
            train_rows=_count(sources.train),
            train_columns=_columns(rows),
            longest_prompt_tokens=_longest_prompt(job, rows, sources.tokenizer, sources.model),
        )
    if sources.evaluation is not None:
        facts = replace(facts, evaluation_rows=_count(sources.evaluation))
    return facts


def with_snapshots(resolved: ResolvedJob) -> Facts:
    """What the prepared datasets tell, whatever they were made of."""
    from areal.data import Snapshot

    layout = resolved.layout
    train = Snapshot(layout.dataset / "train")
    rows = [train.row(index) for index in range(min(len(train), _SAMPLE_ROWS))]
    held_out = layout.dataset / "evaluation"
    return Facts(
        train_rows=len(train),
        train_columns=frozenset(train.columns),
        evaluation_rows=len(Snapshot(held_out)) if held_out.exists() else None,
        longest_prompt_tokens=_longest_prompt(resolved.job, rows, resolved.tokenizer_path, resolved.model_path),
    )


def _of_model(model: Path | None) -> tuple[int | None, int | None]:
    """Vocabulary and context length."""
    config = _json(model / "config.json") if model is not None else {}
    known = [config.get(key) for key in ("vocab_size", "max_position_embeddings")]
    vocabulary, context = (value if isinstance(value, int) else None for value in known)
    return vocabulary, context


def _of_tokenizer(tokenizer: Path | None) -> int | None:
    """Largest token id + 1."""
    if tokenizer is None or not (tokenizer / "tokenizer.json").is_file():
        return None
    import tokenizers

    try:
        fast = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    except Exception:  # the library raises bare Exception; the roles name the file when they read it
        return None
    return max(fast.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def _longest_prompt(
    job: RLJob, rows: Iterable[Mapping[str, Any]], tokenizer_dir: Path | None, model_dir: Path | None
) -> int | None:
    """Tokens of the longest prompt among `rows`, for the built-in workflows; None when that can't be told."""
    if tokenizer_dir is None or job.spec.rollout.workflow not in ("rlvr", "multi-turn"):
        return None
    from areal.workflow.prompt import prompt_of
    from areal.workflow.tokenizer import Tokenizer

    try:
        tokenizer = Tokenizer.from_dir(tokenizer_dir, model_dir=model_dir)
        template = job.spec.rollout.chat_template
        return max((len(prompt_of(row, tokenizer, chat_template=template).ids) for row in rows), default=None)
    except ArealError:
        return None  # a row or tokenizer that is wrong is found, with its place, when the dataset is prepared


def _head(path: Path) -> list[dict[str, Any]]:
    rows = []
    try:
        with path.open("rb") as file:
            for line in itertools.islice(file, _SAMPLE_ROWS):
                row = json.loads(line) if line.strip() else None
                if isinstance(row, dict):
                    rows.append(row)
    except (OSError, ValueError):
        return rows  # preparing the dataset names the line
    return rows


def _columns(rows: list[dict[str, Any]]) -> frozenset[str] | None:
    return frozenset(rows[0]) if rows else None


def _count(path: Path) -> int | None:
    try:
        if path.stat().st_size > _COUNT_LIMIT:
            return None
        with path.open("rb") as file:
            return sum(1 for line in file if line.strip())
    except OSError:
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}
