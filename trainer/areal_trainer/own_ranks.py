"""Frozen models on ranks of their own: the policy's side, which asks, and theirs, which answers until the run ends.

Owns what the two first ranks say to each other. A question is the batch's columns, an answer its log-probabilities, so
neither side knows the other's mesh. Every wait has a deadline, and a failure over there is raised here as what it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from areal.dataflow.own import StageInputs
from areal.errors import ArealError, BugError, DataError, ExitCode, InfraError, Kind, by_kind
from areal.observe.waits import OTHER_MODELS, WaitRegistry

from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.group import Ranks, first_works
from areal_trainer.engine.link import Link
from areal_trainer.engine.message import Message
from areal_trainer.first_asks import FirstAsks
from areal_trainer.frozen_model import Answer, FrozenModel, Logprobs, Question

_log = logging.getLogger(__name__)

ANSWER_DEADLINE_S = 1800.0  # one pass over one batch; a process that ends is seen at once
_SAY_S = 3600.0  # for the policy to take a message: it may still load its own model
_END_S = 5.0
_IDLE_S = 30 * 86400.0  # between two questions: the policy waits for samples; its end closes the link
_WAIT, _ = OTHER_MODELS
_WORDS = "the ranks of the frozen models"

_OFFSETS = ":offsets"  # no column is called so

Run = Callable[[StageInputs], Mapping[str, Any]]
"""What a recipe's stage does."""


@dataclass(frozen=True)
class Held:
    """A frozen model on this rank, and how many token ids it knows."""

    logprobs: Logprobs
    vocabulary: int


class OwnRanks:
    """The policy's side. Every rank has one; rank 0 has the link."""

    def __init__(self, ranks: Ranks, waits: WaitRegistry, *, deadline_s: float = ANSWER_DEADLINE_S) -> None:
        self._ranks = ranks
        self._waits = waits
        self._deadline_s = deadline_s
        self._asks = FirstAsks(ranks, "areal-own-ranks")
        self._over = False
        self.vocabulary: dict[str, int] = {}  # of each model over there, once `ready`

    def ready(self, deadline_s: float) -> None:
        """Wait until every model is loaded over there. Raises what went wrong there, InfraError after `deadline_s`."""
        told = self._asks.begin(lambda: self._received(f"{_WORDS} to load them", deadline_s))()
        self.vocabulary = told.header["vocabulary"]

    def model(self, name: str) -> FrozenModel:
        """The model of that name over there."""
        return _Asked(name, self._asks, self._exchange)

    def stage(self, name: str) -> Run:
        """The recipe's stage of that name, which runs over there. A collective."""

        def run(inputs: StageInputs) -> Mapping[str, Any]:
            header = {"kind": "stage", "model": f"stage {name}", "stage": name}
            message = Message(header, {**inputs, _OFFSETS: inputs.offsets})
            return self._asks.begin(lambda: self._exchange(message))().arrays

        return run

    def close(self) -> None:
        """Tell the other side that nothing more is asked."""
        self._asks.close()
        over, self._over = self._over, True
        if self._ranks.link is not None and not over:
            with suppress(InfraError):
                self._ranks.link.send(Message({"kind": "end"}, {}), _END_S)

    def _exchange(self, message: Message) -> Message:
        """Rank 0: one question, its answer."""
        self._over = True  # but for the answer: who fails hears of no end
        self._link.send(message, self._deadline_s)
        answer = self._received(f"{_WORDS} to answer for the {message.header['model']}", self._deadline_s)
        self._over = False
        return answer

    def _received(self, words: str, deadline_s: float) -> Message:
        with self._waits.waiting(_WAIT, words, deadline_s=deadline_s):
            told = self._link.receive(deadline_s)
        if told.header["kind"] == "failed":
            self._over, said = True, told.header
            raise by_kind(Kind(said["fault"]), f"{_WORDS} failed: {said['message']}", fix=said["fix"])
        return told

    @property
    def _link(self) -> Link:
        if self._ranks.link is None:
            raise BugError("frozen models on own ranks were asked, and this trainer has none")
        return self._ranks.link


class _Asked:
    """One model over there."""

    def __init__(self, name: str, asks: FirstAsks, exchange: Callable[[Message], Message]) -> None:
        self._name = name
        self._asks = asks
        self._exchange = exchange

    def ask(self, question: Question) -> Answer:
        header = {"kind": "ask", "model": self._name, "micro_batch_tokens": question.micro_batch_tokens}
        message = Message(header, {**question.tokens.arrays(), "chosen": question.chosen})
        found = self._asks.begin(lambda: self._exchange(message))
        return lambda: torch.from_numpy(found().arrays["logprobs"].astype(np.float32))


def serve(
    ranks: Ranks,
    load: Callable[[], Mapping[str, Held]],
    *,
    pack_length: int | None,
    stages: Mapping[str, Run] | None = None,
) -> ExitCode:
    """The frozen models' side: load them, and answer until the policy's side ends. Each of their ranks calls this.

    A policy that is gone ends it, too: who failed there says why.
    """
    try:
        models = load()
        _say(ranks, Message({"kind": "ready", "vocabulary": {name: m.vocabulary for name, m in models.items()}}, {}))
        while (message := _next(ranks)).header["kind"] != "end":
            if message.header["kind"] == "stage":
                _say(ranks, _run(message, (stages or {})[message.header["stage"]]))
            else:
                _say(ranks, _answer(ranks, models, message, pack_length))
    except _PolicyGone as gone:
        _log.warning("the frozen models are asked no more: %s", gone)
    except Exception as error:
        with suppress(_PolicyGone):
            _say(ranks, Message(_failure(error), {}))
        raise
    return ExitCode.DONE


class _PolicyGone(Exception):
    """The other end of the link is closed."""


def _answer(ranks: Ranks, models: Mapping[str, Held], message: Message, pack_length: int | None) -> Message:
    columns = dict(message.arrays)
    chosen = np.flatnonzero(columns.pop("chosen"))
    tokens = TokenBatch(**columns)  # type: ignore[arg-type]
    micros = rank_micro_batches(
        tokens,
        chosen,
        tokens.trainable(),
        rank=ranks.data_rank,
        world_size=ranks.data_size,
        micro_batch_tokens=message.header["micro_batch_tokens"],
        pack_length=pack_length,
    )
    found = models[message.header["model"]].logprobs(micros, tokens.tokens)
    return Message({"kind": "answer"}, {"logprobs": found.numpy()})


def _run(message: Message, stage: Run) -> Message:
    """A recipe's stage, whose columns are checked where they are asked for."""
    columns = dict(message.arrays)
    offsets = columns.pop(_OFFSETS)
    try:
        made = {
            name: np.asarray(value)
            for name, value in stage(StageInputs(columns, offsets.astype(np.int64, copy=False))).items()
        }
    except Exception as error:
        words = f"the recipe's {message.header['model']} fails: {type(error).__name__}: {error}"
        raise DataError(words, fix="correct its function") from error
    return Message({"kind": "answer"}, made)


def _next(ranks: Ranks) -> Message:
    """What the policy's side says next, on every rank."""
    link = ranks.link
    message = first_works(ranks, (lambda: _heard(link)) if link is not None else None)
    told = ranks.tell(message if ranks.first else None)
    if told.header["kind"] == "gone":
        raise _PolicyGone(told.header["message"])
    return told


def _heard(link: Link) -> Message:
    """Rank 0: the next message, or that there will be none."""
    try:
        return link.receive(_IDLE_S)
    except InfraError as error:
        return Message({"kind": "gone", "message": error.message}, {})


def _say(ranks: Ranks, message: Message) -> None:
    if ranks.link is None:
        return
    try:
        ranks.link.send(message, _SAY_S)
    except InfraError as error:
        raise _PolicyGone(error.message) from error


def _failure(error: Exception) -> dict[str, str]:
    if isinstance(error, ArealError):
        return {"kind": "failed", "fault": error.kind.value, "message": error.message, "fix": error.fix}
    fix = "look at what that process logged last"
    return {"kind": "failed", "fault": Kind.INFRA.value, "message": f"{type(error).__name__}: {error}", "fix": fix}
