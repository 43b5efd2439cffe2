"""Short supervised training on prompt and answer, and the exact accuracy of a model on such rows.

Owns no files and no model: it is given both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from areal_trainer.tiny.architecture import EOS, PAD

_IGNORED = -100  # label of a token without loss
_NEAR = 0.8  # of the goal: from here on checks are frequent
_CHECK_FAR, _CHECK_NEAR = 10, 2  # steps between two checks
_WINDOW = 0.025  # above the goal: one step can add a tenth, and a model made from the next seed should start alike
_TOO_FAR = 0.10  # above the goal: the window was missed for good
_BLOCK = 256  # rows a forward pass when measuring


@dataclass(frozen=True)
class Example:
    """Token ids of one row; the answer ends with `<eos>`."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Accuracy:
    """Shares of rows answered correctly."""

    sampled: float  # at temperature 1: the mean probability of the right answer, so no sampling noise
    greedy: float


def example(encode: Callable[[str], list[int]], prompt: str, answer: str) -> Example:
    return Example(tuple(encode(prompt)), (*encode(answer), EOS))


def collate(examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids and labels, both [rows, tokens]; only the answer has labels."""
    width = max(len(e.prompt) + len(e.answer) for e in examples)
    ids = torch.full((len(examples), width), PAD)
    labels = torch.full((len(examples), width), _IGNORED)
    for row, e in enumerate(examples):
        end = len(e.prompt) + len(e.answer)
        ids[row, :end] = torch.tensor(e.prompt + e.answer)
        labels[row, len(e.prompt) : end] = torch.tensor(e.answer)
    return ids, labels


@torch.no_grad()
def accuracy(model: PreTrainedModel, examples: Sequence[Example]) -> Accuracy:
    """Exact, by one forward pass over the right answers.

    A greedy answer is right exactly when every token of the right answer is the most likely one, and a sampled answer
    is right with the probability of the whole right answer.
    """
    sampled = 0.0
    greedy = 0
    for start in range(0, len(examples), _BLOCK):
        ids, labels = collate(examples[start : start + _BLOCK])
        logprobs = model(input_ids=ids, use_cache=False).logits[:, :-1].float().log_softmax(-1)
        wanted = labels[:, 1:]
        counted = wanted != _IGNORED
        chosen = logprobs.gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
        sampled += float((chosen * counted).sum(-1).exp().sum())
        greedy += int(((logprobs.argmax(-1) == wanted) | ~counted).all(-1).sum())
    return Accuracy(sampled / len(examples), greedy / len(examples))


def batches(examples: Sequence[Example], size: int, generator: torch.Generator) -> Iterator[list[Example]]:
    """Endless batches; each epoch visits every row once, in a new order."""
    while True:
        order = torch.randperm(len(examples), generator=generator).tolist()
        for start in range(0, len(order) - size + 1, size):
            yield [examples[index] for index in order[start : start + size]]


def train(
    model: PreTrainedModel,
    examples: Sequence[Example],
    validation: Sequence[Example],
    *,
    until: float,
    seed: int,
    learning_rate: float,
    batch_size: int,
    max_steps: int,
    report: Callable[[int, float, Accuracy], None],
) -> tuple[int, Accuracy]:
    """Trains in place until the sampled validation accuracy is `until`; returns the steps and the accuracy then.

    `report` is told step, loss and accuracy at each check. Stops at the first check inside a small window above
    `until`, and after `max_steps` whatever the accuracy.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99))
    model.train()
    stream = batches(examples, min(batch_size, len(examples)), generator)
    measured = Accuracy(0.0, 0.0)
    near = False
    for step in range(1, max_steps + 1):
        ids, labels = collate(next(stream))
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % (_CHECK_NEAR if near else _CHECK_FAR) == 0 or step == max_steps:
            measured = accuracy(model, validation)
            report(step, loss.item(), measured)
            above = measured.sampled - until
            if 0 <= above <= _WINDOW or above > _TOO_FAR:
                return step, measured
            near = near or measured.sampled >= _NEAR * until
    return max_steps, measured
