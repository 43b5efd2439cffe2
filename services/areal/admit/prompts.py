"""Prompt lengths of a dataset: the longest one with its place, and how many leave no room for an answer.

A prompt is encoded only when its text could be too long: no tokenizer here makes more tokens than there are bytes. The
first rows are encoded in any case, so that a template that can't render a row is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from areal.errors import ArealError
from areal.spec import RLJob
from areal.workflow.examples import margin_of, sequences_of
from areal.workflow.prompt import prompt_of
from areal.workflow.rows.forms import prompt_row
from areal.workflow.tokenizer import Tokenizer

READS_PROMPT = ("rlvr", "multi-turn")  # built-in workflows; a recipe's own reads what it likes
_FIRST_ROWS = 64
_EXAMPLES = 2_000
_SPECIAL = 4  # tokens that a tokenizer may put around a text without a template


class Measure(Protocol):
    """What looks at each row of a dataset before a run."""

    longest: int | None  # tokens of a prompt
    place: str
    too_long: int

    def measure(self, place: str, row: Mapping[str, Any]) -> None: ...


def measure_of(job: RLJob, tokenizer_dir: Path | None, model_dir: Path | None) -> Measure:
    """Who looks at the rows of a job: prompts for RL, whole examples for a training on fixed rows."""
    if job.spec.supervised is None:
        return Prompts(job, tokenizer_dir, model_dir)
    return Fixed(job, tokenizer_dir, model_dir)


class Fixed:
    """Looks whether rows can be made into examples of a supervised training."""

    longest: int | None = None
    place = ""
    too_long = 0

    def __init__(self, job: RLJob, tokenizer_dir: Path | None, model_dir: Path | None) -> None:
        self._job = job
        self._tokenizer: Tokenizer | None = None
        self._rows = 0
        if tokenizer_dir is not None:
            try:
                self._tokenizer = Tokenizer.from_dir(tokenizer_dir, model_dir=model_dir)
            except ArealError:
                self._tokenizer = None  # who loads it for the run says why

    def measure(self, place: str, row: Mapping[str, Any]) -> None:
        """Look at one of the first rows; the trainer encodes all of them. Raises DataError, naming the row's place."""
        self._rows += 1
        if self._tokenizer is None or self._rows > _EXAMPLES:
            return
        try:
            sequences_of(row, self._tokenizer, self._job.spec)
            if (block := self._job.spec.reward_model) is not None:
                margin_of(row, block.margin_field)
        except ArealError as error:
            raise type(error)(f"{place}: {error.message}", fix=error.fix) from error


class Prompts:
    """Measures row after row. Knows nothing when the tokenizer can't be read: who loads it says why."""

    def __init__(self, job: RLJob, tokenizer_dir: Path | None, model_dir: Path | None) -> None:
        rollout = job.spec.rollout
        self._template = rollout.chat_template
        self._room = rollout.max_sample_tokens - rollout.sampling.max_new_tokens
        self._tokenizer: Tokenizer | None = None
        self._around = 0  # bytes that a chat template puts around a prompt
        self._rows = 0
        self.longest: int | None = None
        self.place = ""
        self.too_long = 0
        if tokenizer_dir is not None and rollout.workflow in READS_PROMPT:
            try:
                self._tokenizer = Tokenizer.from_dir(tokenizer_dir, model_dir=model_dir)
                self._around = self._bytes_around(self._tokenizer)
            except ArealError:
                self._tokenizer = None

    def measure(self, place: str, row: Mapping[str, Any]) -> None:
        """Take one row into account. Raises DataError for one that can't be rendered, naming its place."""
        if self._tokenizer is None:
            return
        self._rows += 1
        if self._rows > _FIRST_ROWS and self._surely_fits(row):
            return
        try:
            tokens = len(prompt_of(row, self._tokenizer, chat_template=self._template).ids)
        except ArealError as error:
            raise type(error)(f"{place}: {error.message}", fix=error.fix) from error
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

    def _bytes_around(self, tokenizer: Tokenizer) -> int:
        if not (tokenizer.has_chat_template if self._template is None else self._template):
            return _SPECIAL
        return len(tokenizer.render_chat([{"role": "user", "content": ""}]).encode())
