"""Rows of a job: which columns they must have, how long their prompts are, and their snapshots in the run directory.

A prompt is encoded only when its text could be too long: no tokenizer here makes more tokens than there are bytes. The
first rows are encoded in any case, so that a template that can't render a row is found.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from areal.admit.answers import BadRows
from areal.data import Snapshot, prepare, source_from_spec
from areal.data.adapters import read_rows
from areal.data.prepare import LeftOut
from areal.data.rows import Column, ColumnKey
from areal.data.source import HuggingFaceSource, JsonlSource, ReasoningGymSource, Source
from areal.errors import ArealError, DataError, by_kind
from areal.files import write_atomically
from areal.plan import ResolvedJob
from areal.spec import Facts, RLJob
from areal.spec.locate import is_pattern
from areal.spec.rollout import ENVIRONMENT
from areal.spec.sources import DatasetSource
from areal.workflow.examples import margin_of, other_opening, sequences_of
from areal.workflow.rlvr import prompt_of
from areal.workflow.rows.forms import PROMPT_COLUMNS, TEXT_PROMPTS, answer_text, column_of, form_name, prompt_row
from areal.workflow.tokenizer import Tokenizer

Say = Callable[[str], None]

BAD_ROWS = "badrows.jsonl"
"""In a run's dataset directory: the rows that were left out for their expected answers or tests."""

_READS_PROMPT = ("rlvr", "multi-turn")  # built-in workflows; a recipe's own reads what it likes
_FIRST_ROWS = 64
_MATERIAL = ("context", "passage", "body", "document", "article", "background", "premise", "story")
"""Columns in which public data sets keep the text that a question is about."""
_EXAMPLES = 2_000
ASKED_ROWS = 4  # of which a recipe's reward is asked
_WRONG = "I don't know."
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


def reward_items(job: RLJob, source: Source, tokenizer: Tokenizer | None) -> list[dict[str, Any]]:
    """Real rows of a job, each with its expected answer, a wrong and an empty one, as a reward service is given them.

    None where no function of the recipe scores such rows, or where the source isn't on this machine.
    """
    scored = job.spec.is_rl and job.spec.reward.verifier is None and job.spec.rollout.workflow in _READS_PROMPT
    if not _on_disk(source) or not scored:
        return []
    items = []
    for place, row, _ in itertools.islice(read_rows(source), ASKED_ROWS):
        if tokenizer is None:
            text, ids = str(prompt_row(row).messages[-1]["content"]), [0]
        else:
            prompt = prompt_of(row, tokenizer, chat_template=job.spec.rollout.chat_template)
            text, ids = prompt.text, prompt.ids.tolist()
        right = answer_text(column_of(row, job.spec.reward.answer_field))
        for kind, answer in {"right": right, "wrong": _WRONG, "empty": ""}.items():
            if isinstance(answer, str):
                said = [0] if tokenizer is None else tokenizer.encode(answer, special=False).tolist()
                asked = {"prompt": text, "completion": answer, "prompt_ids": ids, "completion_ids": said}
                items.append({**asked, "row": row, "place": place, "kind": kind})
    return items


def episode_item(job: RLJob, source: Source, tokenizer: Path | None, model: Path | None) -> dict[str, Any] | None:
    """What an episode of a job's own workflow or agent is played with; None where it has none, or files are missing."""
    spec = job.spec
    own = spec.is_rl and spec.rollout.workflow not in (*_READS_PROMPT, ENVIRONMENT)
    first = next(read_rows(source), None) if own and _on_disk(source) else None
    if first is None or tokenizer is None or model is None:
        return None
    place, row, _ = first
    right = answer_text(column_of(row, spec.reward.answer_field))
    return {"row": row, "place": place, "right": right, "tokenizer": str(tokenizer), "model": str(model)}


def _on_disk(source: Source) -> bool:
    return isinstance(source, JsonlSource | ReasoningGymSource) or (
        isinstance(source, HuggingFaceSource) and (Path(source.path).exists() or is_pattern(source.path))
    )


def prepare_datasets(resolved: ResolvedJob, recipe: Path | None, say: Say) -> None:
    """Write the snapshots of both splits; ones that are up to date are kept."""
    required = required_columns(resolved.job, resolved.verifier)
    listed: list[dict[str, str]] = []
    for split, source in (("train", resolved.dataset.train), ("evaluation", resolved.dataset.evaluation)):
        if source is not None:
            drops = LongPrompts.of(resolved.job, split, resolved.tokenizer_path, resolved.model_path)
            target = resolved.layout.dataset / split
            snapshot = prepare_split(source, target, split, recipe, required, drops)
            bad = BadRows.of(resolved.job, resolved.verifier, snapshot, say)
            if bad is not None:
                snapshot = prepare_split(source, target, split, recipe, required, any_of(drops, bad))
                bad.check_share(len(snapshot))
                listed += [{"split": split, **row} for row in bad.listed]
            say(f"dataset {split}: {rows_in_words(snapshot)}")
    if listed:
        lines = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in listed)
        write_atomically(resolved.layout.dataset / BAD_ROWS, lines)
        say(f"{len(listed)} rows were left out: {resolved.layout.dataset / BAD_ROWS}")


def any_of(*reasons: LeftOut | None) -> LeftOut:
    """The first reason of several to leave a row out."""

    def reason(place: str, row: Mapping[str, Any]) -> str | None:
        return next((said for each in reasons if each is not None and (said := each(place, row)) is not None), None)

    return reason


def rows_in_words(snapshot: Snapshot) -> str:
    """How many rows a snapshot has, and which were left out of it."""
    left_out = "".join(f", {count} left out: {reason}" for reason, count in snapshot.meta.left_out.items())
    return f"{len(snapshot)} rows{left_out}"


def prepare_split(
    source: DatasetSource,
    target: Path,
    split: str,
    recipe: Path | None,
    required: Sequence[Column],
    left_out: LeftOut | None = None,
    progress: Callable[[int], None] | None = None,
) -> Snapshot:
    """One dataset, whose paths are absolute, as a snapshot."""
    named = source_from_spec(source, base_dir=Path("/"), recipe=recipe, split=split)
    return prepare(named, target, required=required, left_out=left_out, progress=progress)


def with_snapshots(resolved: ResolvedJob) -> Facts:
    """What the prepared datasets tell, whatever they were made of: every row is looked at, every prompt measured."""
    layout = resolved.layout
    train, held_out = Snapshot(layout.dataset / "train"), layout.dataset / "evaluation"
    try:
        tokenizer = Tokenizer.from_dir(resolved.tokenizer_path, model_dir=resolved.model_path, job=resolved.spec.model)
    except ArealError:
        tokenizer = None
    rows = RowMeasure(resolved.job, tokenizer)
    rows.measure_all(train)
    evaluation = Snapshot(held_out) if held_out.exists() else None
    if evaluation is not None:
        RowMeasure(resolved.job, tokenizer).measure_all(evaluation)
    return Facts(
        train_rows=len(train),
        train_columns=frozenset(train.columns),
        evaluation_rows=len(evaluation) if evaluation is not None else None,
        longest_prompt_tokens=rows.longest,
        longest_prompt_place=rows.place,
        prompts_too_long=rows.too_long,
    )


class PromptLength:
    """How many tokens the prompts of a job's rows have."""

    def __init__(self, job: RLJob, tokenizer: Tokenizer) -> None:
        rollout = job.spec.rollout
        self.room = rollout.max_sample_tokens - rollout.sampling.max_new_tokens
        self._template = rollout.chat_template
        self._tokenizer = tokenizer
        self.image_bytes = 0  # of a row's images, the most so far
        self._around: int | None = None  # what a chat template puts around a prompt; None where it takes no empty one
        with suppress(ArealError):
            self._around = _bytes_around(tokenizer, self._template)

    def tokens(self, row: Mapping[str, Any]) -> int:
        """Of a row's prompt. Raises DataError for a row without one."""
        prompt = prompt_of(row, self._tokenizer, chat_template=self._template)
        self.image_bytes = max(self.image_bytes, sum(len(image.data) for image in prompt.images))
        return len(prompt.ids)

    def surely_fits(self, row: Mapping[str, Any]) -> bool:
        """Whether a prompt leaves room for an answer, as far as its bytes tell without a tokenizer."""
        try:
            chat = prompt_row(row)
        except ArealError:
            return False
        texts = sum(len(message["content"].encode(errors="replace")) for message in chat.messages)
        return chat.plain and self._around is not None and texts + self._around <= self.room


class LongPrompts:
    """Leaves rows out of a snapshot whose prompts leave no room for an answer."""

    def __init__(self, length: PromptLength) -> None:
        self._length = length

    @classmethod
    def of(cls, job: RLJob, split: str, tokenizer: Path, model: Path | None) -> "LongPrompts | None":
        """For one split of a job; None where nothing is dropped."""
        if split != "train" or job.spec.dataset.long_prompts != "drop":
            return None
        return cls(PromptLength(job, Tokenizer.from_dir(tokenizer, model_dir=model)))

    def __call__(self, place: str, row: Mapping[str, Any]) -> str | None:
        try:
            if self._length.surely_fits(row) or self._length.tokens(row) <= self._length.room:
                return None
        except ArealError as error:
            raise by_kind(error.kind, f"{place}: {error.message}", fix=error.fix) from error
        return f"prompts of more than {self._length.room} tokens"


class RowMeasure:
    """Looks at row after row of one source: prompts for RL, whole examples for a training on fixed rows.

    Knows nothing without a tokenizer: who loads it says why.
    """

    def __init__(self, job: RLJob, tokenizer: Tokenizer | None) -> None:
        self._spec = job.spec
        looks = job.spec.supervised is not None or job.spec.rollout.workflow in _READS_PROMPT
        self._tokenizer = tokenizer if looks else None
        self._length: PromptLength | None = None
        if self._tokenizer is not None and job.spec.is_rl:
            self._length = PromptLength(job, self._tokenizer)
        self.opening: tuple[str, str] | None = None
        if self._tokenizer is not None and job.spec.supervised is not None and self._tokenizer.has_chat_template:
            with suppress(ArealError):  # a row tells what the template refuses
                self.opening = other_opening(self._tokenizer)
        self._rows = 0
        self.form: str | None = None  # of the first row
        self.longest: int | None = None  # tokens of a prompt
        self.place = ""
        self.too_long = 0
        self.beside: set[str] = set()  # columns of texts that belong to a question, and aren't in the prompt

    @property
    def image_bytes(self) -> int:
        """Of a row's images, the most that was seen."""
        return 0 if self._length is None else self._length.image_bytes

    @property
    def looks(self) -> bool:
        """Whether it renders rows at all."""
        return self._tokenizer is not None

    def measure_all(self, snapshot: Snapshot) -> None:
        """Every row of a prepared dataset, source by source."""
        index = 0
        for part in snapshot.parts:
            self.form = None
            for _ in range(part.rows):
                self.measure(snapshot.place(index), snapshot.row(index))
                index += 1

    def measure(self, place: str, row: Mapping[str, Any]) -> None:
        """Take one row into account. Raises DataError for one that can't be used, naming its place."""
        if self._tokenizer is None:
            return
        self._rows += 1
        try:
            self._same_form(row)
            asked = next((row[name] for name in TEXT_PROMPTS if isinstance(row.get(name), str)), None)
            if asked is not None and self._rows <= _FIRST_ROWS:
                texts = {name: str(row.get(name) or "").strip() for name in _MATERIAL}
                self.beside |= {name for name, text in texts.items() if text not in asked}
            if self._spec.supervised is not None:
                self._example(row, self._tokenizer)
            elif self._length is not None and (self._rows <= _FIRST_ROWS or not self._length.surely_fits(row)):
                self._prompt(place, row, self._length)
        except ArealError as error:
            raise by_kind(error.kind, f"{place}: {error.message}", fix=error.fix) from error

    def _same_form(self, row: Mapping[str, Any]) -> None:
        form = form_name(row)
        if self.form is None or form is None:  # a row without a form is refused for what it lacks
            self.form = self.form or form
        elif form != self.form and self._spec.dataset.form != "auto":
            raise DataError(
                f"the row is read as {form}, the first row of its source as {self.form}",
                fix="mend the row, or write dataset.form: auto where a source mixes forms",
            )

    def _example(self, row: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        if self._rows > _EXAMPLES:
            return  # the trainer encodes all of them
        sequences_of(row, tokenizer, self._spec)
        if (block := self._spec.reward_model) is not None:
            margin_of(row, block.margin_field)

    def _prompt(self, place: str, row: Mapping[str, Any], length: PromptLength) -> None:
        tokens = length.tokens(row)
        self.too_long += tokens > length.room
        if self.longest is None or tokens > self.longest:
            self.longest, self.place = tokens, place


def _bytes_around(tokenizer: Tokenizer, template: bool | None) -> int:
    if not (tokenizer.has_chat_template if template is None else template):
        return _SPECIAL
    return len(tokenizer.render_chat([{"role": "user", "content": ""}]).encode())
