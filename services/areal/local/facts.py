"""What is known beside the job file, for the rules that need it: recipe, dataset, tokenizer, model.

Reads files and imports the recipe elsewhere (`recipe_probe`). What can't be known cheaply stays unknown; a file that is
missing is another rule's business. Prompts are measured on the first rows only, which finds the usual mistake.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal.errors import ArealError
from areal.local.recipe_probe import probe
from areal.plan import ResolvedJob
from areal.spec import Facts, RLJob
from areal.spec.locate import locate

_SAMPLE_ROWS = 256  # prompts to tokenize: a few milliseconds
_COUNT_LIMIT = 1 << 30  # bytes of a file whose lines are still counted


def gather(job: RLJob, base_dir: Path) -> Facts:
    """All that is known before anything is prepared. Raises DataError for a recipe that doesn't import."""
    spec = job.spec
    facts = Facts()
    if spec.recipe is not None and spec.recipe.file and (recipe := locate(spec.recipe.file, base_dir)):
        parts = probe(recipe)
        facts = replace(facts, recipe_defines_reward=parts.reward, recipe_workflows=parts.workflows)
    model = locate(spec.model.path, base_dir) if spec.model.path else None
    tokenizer = locate(spec.model.tokenizer, base_dir) if spec.model.tokenizer else model
    vocabulary, context = _of_model(model)
    facts = replace(
        facts,
        model_vocabulary=vocabulary,
        model_context_tokens=context,
        tokenizer_vocabulary=_of_tokenizer(tokenizer),
    )
    if spec.dataset.train.jsonl and (train := locate(spec.dataset.train.jsonl, base_dir)):
        rows = _head(train)
        facts = replace(
            facts,
            train_rows=_count(train),
            train_columns=_columns(rows),
            longest_prompt_tokens=_longest_prompt(job, rows, tokenizer, model),
        )
    held_out = spec.dataset.evaluation.jsonl if spec.dataset.evaluation else None
    if held_out and (path := locate(held_out, base_dir)):
        facts = replace(facts, evaluation_rows=_count(path))
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
