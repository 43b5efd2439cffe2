"""From a dataset row to token sequences with a loss mask: answers for SFT and distillation, pairs for the others.

Owns which tokens are trained: an assistant's own, with the token that ends its turn; never a prompt's, a user's, a
tool's, or what a template puts between turns. A text is encoded in the pieces in which generation would meet it, so
that an answer has the tokens that a model would have sampled.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal.errors import DataError
from areal.image_shape import ImageShape
from areal.spec.job import JobSpec
from areal.spec.supervised import Answers
from areal.values.images import MARK, Image, image_of
from areal.workflow.content import common_start
from areal.workflow.rlvr import row_kwargs
from areal.workflow.rows.forms import answer_row, pair_row, prompt_row
from areal.workflow.rows.messages import Message, ToolSchema
from areal.workflow.rows.rendering import generation_blocks, render_chat
from areal.workflow.tokenizer import Tokenizer


@dataclass(frozen=True)
class Example:
    """One sequence. `mask` is True for tokens that the loss counts."""

    ids: NDArray[np.int64]  # [tokens]
    mask: NDArray[np.bool_]  # [tokens]
    images: tuple[Image, ...] = ()  # in the order of their placeholders

    def cut(self, longest: int, shape: ImageShape | None = None) -> "Example":
        """Its first `longest` tokens, or fewer: an image that doesn't fit whole is left out with all behind it."""
        kept = len(self.images)
        if shape is not None and len(self.ids) > longest:
            begins = shape.begins(self.ids, self.images)
            for begin, image in zip(begins, self.images, strict=True):
                longest = begin if begin < longest < begin + shape.tokens(image) else longest
            kept = sum(begin < longest for begin in begins)
        return Example(self.ids[:longest], self.mask[:longest], self.images[:kept])

    def scored(self) -> "Example":
        """The whole sequence as a reward model sees it: with one place more, whose value is the sequence's score.

        A model's value at a place is of the tokens before it, so the token there is none that counts.
        """
        mask = np.zeros(len(self.ids) + 1, np.bool_)
        mask[-1] = True
        return Example(np.append(self.ids, 0), mask, self.images)

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
    """An answer's row, whatever shape it has (`areal.workflow.rows.forms`)."""
    chat = answer_row(row, answer_field, images=tokenizer.image_shape is not None)
    if chat.plain and not _use_chat(tokenizer, chat_template):
        return _texts(chat.messages[0]["content"], chat.messages[1]["content"], tokenizer)
    return _chat(chat.messages, tokenizer, chat.trained, chat.tools, row_kwargs(row, tokenizer), chat.images)


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
    found = pair_row(row, images=tokenizer.image_shape is not None)
    plain = found.plain and not _use_chat(tokenizer, chat_template)
    sides = []
    for answer in (found.chosen, found.rejected):
        if plain:
            sides.append(_texts(found.prompt[0]["content"], answer[0]["content"], tokenizer))
        else:
            messages, last = [*found.prompt, *answer], len(found.prompt) + len(answer) - 1
            kwargs = row_kwargs(row, tokenizer)
            sides.append(_chat(messages, tokenizer, (last,), found.tools, kwargs, found.images))
    return sides[0], sides[1]


def answered(
    row: Mapping[str, Any], answer: str, tokenizer: Tokenizer, *, chat_template: bool | None = None
) -> Example:
    """A row's prompt and an answer to it, by the chat template where there is one."""
    chat = prompt_row(row)
    if chat.plain and not _use_chat(tokenizer, chat_template):
        return _texts(chat.messages[0]["content"], answer, tokenizer)
    last: Message = {"role": "assistant", "content": answer}
    if chat.continues:
        *before, begun = chat.messages
        messages = [*before, {**begun, "content": begun["content"] + answer}]
    else:
        messages = [*chat.messages, last]
    return _chat(messages, tokenizer, (len(messages) - 1,), chat.tools, row_kwargs(row, tokenizer))


def _use_chat(tokenizer: Tokenizer, chat_template: bool | None) -> bool:
    return tokenizer.has_chat_template if chat_template is None else chat_template


def _texts(prompt: str, answer: str, tokenizer: Tokenizer) -> Example:
    """A prompt's and an answer's text without a chat template, and the token that ends an answer."""
    asked = tokenizer.encode_plain(prompt)
    ends = [] if tokenizer.end_id is None else [tokenizer.end_id]
    return _joined([(np.asarray(asked), False), (np.asarray([*tokenizer.encode(answer, special=False), *ends]), True)])


def _chat(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    trained: Collection[int],
    tools: Sequence[ToolSchema] = (),
    kwargs: Mapping[str, Any] | None = None,
    images: Sequence[Any] = (),
) -> Example:
    """A chat by the model's template, the turns at the places `trained` counted by the loss.

    A turn begins where the template's text for the chat before it, opened for an answer, and the chat with it part: a
    template may open an answer with a thought that it closes otherwise in the history. A turn that the template writes
    otherwise once more turns follow (thoughts dropped from the history) is context: the model would never be asked to
    say it there. Of a template with a `{% generation %}` block for each turn, that block counts instead, as far as the
    token that ends the turn.
    """
    whole = render_chat(messages, tokenizer, tools=tools, generation_prompt=False, kwargs=kwargs)
    render = partial(tokenizer.render_chat, tools=tools, kwargs=kwargs)
    pieces: list[tuple[int, int, bool]] = []
    done = 0
    by_block = _block_of_turn(whole, messages, tokenizer, tools, kwargs)
    for place in sorted(trained):
        if by_block:
            begin, end = by_block[place]
            end = begin + len(_to_its_end(whole[begin:end], tokenizer))
            pieces += [(done, begin, False), (begin, end, True)]
            done = end
            continue
        last = place == len(messages) - 1
        before, closed = render(messages[:place]), render(messages[:place], generation_prompt=False)
        after = str(whole) if last else render(messages[: place + 1], generation_prompt=False)
        begin = common_start(before, after)
        opened = begin == len(before) or begin >= len(closed)
        if not whole.startswith(after) or not opened or begin < done:
            continue
        end = begin + len(_to_its_end(after[begin:], tokenizer))
        pieces += [(done, begin, False), (begin, end, True)]
        done = end
    if not pieces:
        raise DataError(
            "the chat template writes no turn of the assistant's behind the chat before it",
            fix="use a template whose text of a longer chat begins with that of the shorter one",
        )
    pieces.append((done, len(whole), False))
    files = tuple(map(image_of, images))
    if images and whole.count(MARK) != len(files):
        words = f"the chat template shows {whole.count(MARK)} of {len(files)} images"
        raise DataError(words, fix="use the model's own chat template")
    rest, parts = iter(files), []
    for start, end, counted in pieces:
        if start < end:
            piece = whole.until(end).after(start)
            own = list(islice(rest, piece.count(MARK))) if images else []
            parts.append((np.asarray(tokenizer.encode_chat(piece, own)), counted))
    return replace(_joined(parts), images=files)


def _block_of_turn(
    whole: str,
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    tools: Sequence[ToolSchema],
    kwargs: Mapping[str, Any] | None,
) -> dict[int, tuple[int, int]]:
    """The generation block of each assistant's turn, in characters; none where the template has not one for each."""
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    blocks = generation_blocks(
        whole, tokenizer, lambda other: other.render_chat(messages, generation_prompt=False, tools=tools, kwargs=kwargs)
    )
    return dict(zip(turns, blocks, strict=True)) if blocks and len(blocks) == len(turns) else {}


def other_opening(tokenizer: Tokenizer) -> tuple[str, str] | None:
    """What a template opens an answer with and what it writes there once the answer is told, where those differ."""
    asked: Message = {"role": "user", "content": "?"}
    opened = tokenizer.render_chat([asked])
    told = tokenizer.render_chat([asked, {"role": "assistant", "content": "!"}], generation_prompt=False)
    begin = common_start(opened, told)
    return None if begin == len(opened) else (opened[begin:], told[begin : told.find("!", begin)])


def _to_its_end(said: str, tokenizer: Tokenizer) -> str:
    """A turn up to the token that ends it: what the template puts behind that is no answer's."""
    ends = [place + len(text) for text in tokenizer.end_texts if (place := said.rfind(text)) >= 0]
    return said[: max(ends)] if ends else said


def _joined(pieces: Sequence[tuple[NDArray[Any], bool]]) -> Example:
    ids = np.concatenate([ids for ids, _ in pieces]).astype(np.int64)
    mask = np.concatenate([np.full(len(ids), trained, np.bool_) for ids, trained in pieces])
    return Example(ids, mask)
