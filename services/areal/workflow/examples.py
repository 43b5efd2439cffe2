"""From a dataset row to token sequences with a loss mask: answers for SFT and distillation, pairs for the others.

Owns which tokens are trained: an assistant's own, with the token that ends its turn; never a prompt's, a user's, a
tool's, or what a template puts between turns. A text is encoded in the pieces in which generation would meet it, so
that an answer has the tokens that a model would have sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal.errors import DataError
from areal.spec.job import JobSpec
from areal.spec.supervised import Answers
from areal.workflow.tokenizer import Tokenizer

PROMPTS = ("messages", "prompt", "question")  # the first one that a row has is the prompt
_ASSISTANT = "assistant"


@dataclass(frozen=True)
class Example:
    """One sequence. `mask` is True for tokens that the loss counts."""

    ids: NDArray[np.int64]  # [tokens]
    mask: NDArray[np.bool_]  # [tokens]

    def cut(self, longest: int) -> Example:
        """Its first `longest` tokens."""
        return Example(self.ids[:longest], self.mask[:longest])

    def scored(self) -> Example:
        """The whole sequence as a reward model sees it: with one place more, whose value is the sequence's score.

        A model's value at a place is of the tokens before it, so the token there is none that counts.
        """
        mask = np.zeros(len(self.ids) + 1, np.bool_)
        mask[-1] = True
        return Example(np.append(self.ids, 0), mask)

    @property
    def trained(self) -> int:
        """How many tokens the loss counts; the first token of a sequence never is."""
        return int(self.mask[1:].sum())


def sequences_of(row: Mapping[str, Any], tokenizer: Tokenizer, spec: JobSpec) -> list[Example]:
    """The sequences of a row: the chosen and the rejected one of a pair, else one. Not cut to maxTokens.

    Raises DataError for a row that has no such form.
    """
    block = spec.supervised
    assert block is not None
    if spec.has_pairs:
        chosen, rejected = pair(row, tokenizer, chat_template=block.chat_template)
        return [chosen, rejected]
    assert isinstance(block, Answers)
    return [example(row, tokenizer, answer_field=block.answer_field, chat_template=block.chat_template)]


def example(
    row: Mapping[str, Any], tokenizer: Tokenizer, *, answer_field: str = "answer", chat_template: bool | None = None
) -> Example:
    """An answer's row: messages that end with an assistant's, or a prompt (text or messages) and an answer."""
    prompt = prompt_in(row)
    if isinstance(prompt, list) and prompt and _role(prompt[-1]) == _ASSISTANT:
        return _chat(prompt, tokenizer)
    answer = row.get(answer_field)
    if not isinstance(answer, str):
        raise DataError(
            f"a row has neither messages that end with an assistant's nor a text in its column {answer_field!r}; "
            f"it has {', '.join(map(str, row)) or 'none at all'}",
            fix=f"give messages, or a prompt and {answer_field!r} (answerField names another column)",
        )
    return answered(prompt, answer, tokenizer, chat_template)


def margin_of(row: Mapping[str, Any], field: str | None) -> float:
    """How much higher a pair's chosen answer must score; 0 where no column says it. Raises DataError for no number."""
    if field is None:
        return 0.0
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(
            f"a row's column {field!r} is no finite number", fix="give each pair its margin, or leave out marginField"
        )
    return float(value)


def pair(row: Mapping[str, Any], tokenizer: Tokenizer, *, chat_template: bool | None = None) -> tuple[Example, Example]:
    """A pair: the prompt with its chosen and with its rejected answer; of chats, the last turn counts."""
    sides = []
    for side in ("chosen", "rejected"):
        value = row.get(side)
        if isinstance(value, str):
            sides.append(answered(prompt_in(row), value, tokenizer, chat_template))
        elif isinstance(value, list) and value and _role(value[-1]) == _ASSISTANT:
            before = prompt_in(row) if any(row.get(name) is not None for name in PROMPTS) else []
            history = [{"role": "user", "content": before}] if isinstance(before, str) else before
            whole = value if _starts(value, history) else [*history, *value]
            sides.append(_chat(whole, tokenizer, only_last=True))
        else:
            raise DataError(
                f"a row's column {side!r} is neither a text nor messages that end with an assistant's",
                fix="give prompt, chosen and rejected: texts, or lists of messages",
            )
    return sides[0], sides[1]


def prompt_in(row: Mapping[str, Any]) -> str | list[Any]:
    """A row's prompt, a text or messages. Raises DataError when it has none."""
    column = next((name for name in PROMPTS if row.get(name) is not None), None)
    value = None if column is None else row[column]
    if not isinstance(value, str | list):
        raise DataError(
            f"a row has no text or messages in {', '.join(PROMPTS)}; it has {', '.join(map(str, row)) or 'none'}",
            fix="name the prompt's column `prompt`, or give `messages`",
        )
    return value


def answered(prompt: str | list[Any], answer: str, tokenizer: Tokenizer, chat_template: bool | None) -> Example:
    """A prompt and its answer; by the chat template where there is one."""
    use_chat = tokenizer.has_chat_template if chat_template is None else chat_template
    if isinstance(prompt, list) or use_chat:
        history = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        return _chat([*history, {"role": _ASSISTANT, "content": answer}], tokenizer, only_last=True)
    asked = tokenizer.encode(prompt)
    ends = [] if tokenizer.end_id is None else [tokenizer.end_id]
    return _joined([(np.asarray(asked), False), (np.asarray([*tokenizer.encode(answer, special=False), *ends]), True)])


def _chat(messages: Sequence[Any], tokenizer: Tokenizer, *, only_last: bool = False) -> Example:
    """A chat by the model's template, the assistant's turns trained.

    A turn that the template writes otherwise once more turns follow (thoughts dropped from the history) is context:
    the model would never be asked to say it there.
    """
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError("a message is no mapping with a role", fix='write {"role": "user", "content": "…"}')
    whole = tokenizer.render_chat(messages, generation_prompt=False)
    pieces: list[tuple[str, bool]] = []
    done = 0
    for place, message in enumerate(messages):
        last = place == len(messages) - 1
        if _role(message) != _ASSISTANT or (only_last and not last):
            continue
        before = tokenizer.render_chat(messages[:place])
        after = whole if last else tokenizer.render_chat(messages[: place + 1], generation_prompt=False)
        if not (after.startswith(before) and whole.startswith(after) and len(before) >= done):
            continue
        said = _to_its_end(after[len(before) :], tokenizer)
        pieces += [(whole[done : len(before)], False), (said, True)]
        done = len(before) + len(said)
    if not pieces:
        raise DataError(
            "the chat template puts no assistant's turn behind its generation prompt",
            fix="use a template whose prompt for an answer is how the answer's turn begins",
        )
    pieces.append((whole[done:], False))
    return _joined([(np.asarray(tokenizer.encode(text, special=False)), trained) for text, trained in pieces if text])


def _to_its_end(said: str, tokenizer: Tokenizer) -> str:
    """A turn up to the token that ends it: what the template puts behind that is no answer's."""
    ends = [place + len(text) for text in tokenizer.end_texts if (place := said.rfind(text)) >= 0]
    return said[: max(ends)] if ends else said


def _joined(pieces: Sequence[tuple[NDArray[Any], bool]]) -> Example:
    ids = np.concatenate([ids for ids, _ in pieces]).astype(np.int64)
    mask = np.concatenate([np.full(len(ids), trained, np.bool_) for ids, trained in pieces])
    return Example(ids, mask)


def _role(message: Any) -> str:
    return str(message.get("role", "")) if isinstance(message, Mapping) else ""


def _starts(messages: Sequence[Any], history: Sequence[Any]) -> bool:
    return bool(history) and list(messages[: len(history)]) == list(history)
