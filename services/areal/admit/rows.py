"""Rows of a job: which columns they must have, how long their prompts are, and their snapshots in the run directory.

A prompt is encoded only when its text could be too long: no tokenizer here makes more tokens than there are bytes. The
first rows are encoded in any case, so that a template that can't render a row is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from areal.data import Snapshot, prepare, source_from_spec
from areal.data.rows import Column, ColumnKey
from areal.errors import ArealError
from areal.plan import ResolvedJob
from areal.spec import Facts, RLJob
from areal.spec.sources import DatasetSource
from areal.workflow.examples import margin_of, sequences_of
from areal.workflow.prompt import prompt_of
from areal.workflow.rows.forms import PROMPT_COLUMNS, prompt_row
from areal.workflow.tokenizer import Tokenizer

Say = Callable[[str], None]

_READS_PROMPT = ("rlvr", "multi-turn")  # built-in workflows; a recipe's own reads what it likes
_FIRST_ROWS = 64
_EXAMPLES = 2_000
_SPECIAL = 4  # tokens that a tokenizer may put around a text without a template


def required_columns(job: RLJob, verifier: str | None, needed: Iterable[str] = ()) -> list[Column]:
    """Columns that every row must have, as far as the job tells. `needed`: by the recipe's `reward`, by name."""
    columns: list[Column] = []
    if job.spec.supervised is not None:
        return columns  # each row may have its own form: `areal.workflow.examples` looks at them
    if job.spec.rollout.workflow in _READS_PROMPT:
        columns.append((*PROMPT_COLUMNS, "chosen"))
    if verifier in ("exact", "math"):
        columns.append(job.spec.reward.answer_field)
    if verifier == "custom":
        columns += [ColumnKey(name, "the recipe's reward") for name in sorted(needed)]
    return columns


def prepare_datasets(resolved: ResolvedJob, recipe: Path | None, say: Say) -> None:
    """Write the snapshots of both splits; ones that are up to date are kept."""
    required = required_columns(resolved.job, resolved.verifier)
    for split, source in (("train", resolved.dataset.train), ("evaluation", resolved.dataset.evaluation)):
        if source is not None:
            snapshot = prepare_split(source, resolved.layout.dataset / split, split, recipe, required)
            say(f"dataset {split}: {len(snapshot)} rows")


def prepare_split(
    source: DatasetSource,
    target: Path,
    split: str,
    recipe: Path | None,
    required: Sequence[Column],
    progress: Callable[[int], None] | None = None,
) -> Snapshot:
    """One dataset, whose paths are absolute, as a snapshot."""
    named = source_from_spec(source, base_dir=Path("/"), recipe=recipe, split=split)
    return prepare(named, target, required=required, progress=progress)


def with_snapshots(resolved: ResolvedJob) -> Facts:
    """What the prepared datasets tell, whatever they were made of: every prompt is measured."""
    layout = resolved.layout
    train = Snapshot(layout.dataset / "train")
    try:
        tokenizer = Tokenizer.from_dir(resolved.tokenizer_path, model_dir=resolved.model_path)
    except ArealError:
        tokenizer = None
    rows = RowMeasure(resolved.job, tokenizer)
    for index in range(len(train)):
        rows.measure(f"{train.meta.source}, row {index + 1}", train.row(index))
    held_out = layout.dataset / "evaluation"
    return Facts(
        train_rows=len(train),
        train_columns=frozenset(train.columns),
        evaluation_rows=len(Snapshot(held_out)) if held_out.exists() else None,
        longest_prompt_tokens=rows.longest,
        longest_prompt_place=rows.place,
        prompts_too_long=rows.too_long,
    )


class RowMeasure:
    """Looks at row after row: prompts for RL, whole examples for a training on fixed rows.

    Knows nothing without a tokenizer: who loads it says why.
    """

    def __init__(self, job: RLJob, tokenizer: Tokenizer | None) -> None:
        rollout, self._spec = job.spec.rollout, job.spec
        self._template = rollout.chat_template
        self._room = rollout.max_sample_tokens - rollout.sampling.max_new_tokens
        looks = job.spec.supervised is not None or rollout.workflow in _READS_PROMPT
        self._tokenizer = tokenizer if looks else None
        self._around = _SPECIAL  # bytes that a chat template puts around a prompt
        if self._tokenizer is not None and job.spec.is_rl:
            try:
                self._around = _bytes_around(self._tokenizer, self._template)
            except ArealError:
                self._tokenizer = None
        self._rows = 0
        self.longest: int | None = None  # tokens of a prompt
        self.place = ""
        self.too_long = 0

    def measure(self, place: str, row: Mapping[str, Any]) -> None:
        """Take one row into account. Raises DataError for one that can't be used, naming its place."""
        if self._tokenizer is None:
            return
        self._rows += 1
        try:
            if self._spec.supervised is not None:
                self._example(row, self._tokenizer)
            elif self._rows <= _FIRST_ROWS or not self._surely_fits(row):
                self._prompt(place, row, self._tokenizer)
        except ArealError as error:
            raise type(error)(f"{place}: {error.message}", fix=error.fix) from error

    def _example(self, row: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        if self._rows > _EXAMPLES:
            return  # the trainer encodes all of them
        sequences_of(row, tokenizer, self._spec)
        if (block := self._spec.reward_model) is not None:
            margin_of(row, block.margin_field)

    def _prompt(self, place: str, row: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        tokens = len(prompt_of(row, tokenizer, chat_template=self._template).ids)
        self.too_long += tokens > self._room
        if self.longest is None or tokens > self.longest:
            self.longest, self.place = tokens, place

    def _surely_fits(self, row: Mapping[str, Any]) -> bool:
        try:
            chat = prompt_row(row)
        except ArealError:
            return False
        texts = sum(len(message["content"].encode(errors="replace")) for message in chat.messages)
        return chat.plain and texts + self._around <= self._room


def _bytes_around(tokenizer: Tokenizer, template: bool | None) -> int:
    if not (tokenizer.has_chat_template if template is None else template):
        return _SPECIAL
    return len(tokenizer.render_chat([{"role": "user", "content": ""}]).encode())
