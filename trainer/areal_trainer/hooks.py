"""Validation of a user's hooks: `compute_advantages` and `compute_loss`, tried on a made-up batch before a run.

Owns what their results must look like. A hook that would fail at the first step fails at the start instead, before a
fence is taken or a sample is made.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from areal.dataflow.builtin import graph_of
from areal.dataflow.own import more_columns
from areal.dataflow.stages import Graph
from areal.errors import DataError
from areal.spec.job import JobSpec

from areal_trainer.algorithms.advantages import AdvantageOptions, Advantages, estimate_advantages
from areal_trainer.data.batch import AdvantageBatch, TokenBatch
from areal_trainer.figures import checked
from areal_trainer.objective import LossBatch, LossOutputs, checked_loss
from areal_trainer.options import critic_options, objective_options

_LENGTHS = (5, 4, 6, 3)  # two groups of two samples; every sequence begins with two tokens of a prompt
_PROMPT = 2


@dataclass(frozen=True)
class HookFacts:
    """What a job's hooks are given beside what every batch has."""

    critic: bool = False  # values
    reference: bool = False  # log-probabilities of the reference
    own: Graph | None = None  # columns of the recipe's own stages
    usual: Graph | None = None  # the graph that the job has without them

    @classmethod
    def of(cls, spec: JobSpec, own: Graph | None) -> "HookFacts":
        """What a job's hooks are given, `own` being the graph that its recipe makes."""
        has_kl = objective_options(spec).policy.kl is not None
        return cls(critic_options(spec) is not None, has_kl, own, graph_of(spec))


def try_hooks(
    compute_advantages: Callable[..., Any] | None,
    compute_loss: Callable[..., Any] | None,
    vocabulary: int,
    given: HookFacts,
) -> None:
    """Call each hook once on a made-up batch that has what the job's batches have.

    Raises DataError that names the hook and what is wrong.
    """
    tokens = _made_up(vocabulary)
    if compute_advantages is not None:
        usual = estimate_advantages(tokens, AdvantageOptions())
        values = np.where(tokens.loss_mask, 0.5, 0.0) if given.critic else None
        batch = AdvantageBatch.of(tokens, usual.counted, values, _own(given, "advantages", tokens))
        advantages_from(_called("compute_advantages(batch)", compute_advantages, batch), tokens, usual)
        checked("compute_advantages", batch.figures)
    if compute_loss is not None:
        _try_loss(compute_loss, tokens, given)


def advantages_from(given: Any, tokens: TokenBatch, usual: Advantages) -> Advantages:
    """What a recipe returned: one number a sequence, or one a token. Sequences of nothing but 0 are not trained."""
    values = np.asarray(given, dtype=np.float64)
    actions, sequence = tokens.trainable(), tokens.sequence_of
    if values.shape == (tokens.sequences,):
        by_token = np.where(actions, values[sequence], 0.0)
    elif values.shape == (tokens.tokens,):
        by_token = np.where(actions, values, 0.0)
        values = np.bincount(sequence, by_token, tokens.sequences) / np.maximum(
            np.bincount(sequence, actions, tokens.sequences), 1
        )
    else:
        raise DataError(
            f"compute_advantages gave shape {values.shape} for {tokens.sequences} sequences of {tokens.tokens} tokens",
            fix="return one advantage for each entry of batch.rewards, or one for each entry of batch.token_ids",
        )
    signal = np.zeros(tokens.sequences, np.bool_)
    signal[sequence[by_token != 0.0]] = True
    return replace(usual, values=values, tokens=by_token, trained=usual.counted & signal)


def _own(given: HookFacts, stage: str, tokens: TokenBatch) -> dict[str, np.ndarray[Any, Any]]:
    """Columns of ones where a recipe's stages write theirs."""
    length = {"sequence": tokens.sequences, "token": tokens.tokens}
    columns = more_columns(given.own, given.usual, stage) if given.own is not None and given.usual is not None else ()
    return {column.name: np.ones(length[column.axis], column.dtype) for column in columns}


def _try_loss(compute_loss: Callable[..., Any], tokens: TokenBatch, given: HookFacts) -> None:
    place = np.flatnonzero(tokens.trainable())
    behaviour = torch.from_numpy(tokens.behaviour_logprobs[place])
    logprobs = (behaviour + 0.1).requires_grad_(True)
    batch = LossBatch(
        advantages=torch.linspace(-1.0, 1.0, len(place)),
        behaviour=behaviour,
        proximal=behaviour + 0.05,
        reference=behaviour - 0.05 if given.reference else None,
        versions=torch.from_numpy(tokens.versions[place]),
        sequence=torch.from_numpy(tokens.sequence_of[place]),
        token_ids=torch.from_numpy(tokens.token_ids[place]),
        columns={name: torch.ones(len(place)) for name in _own(given, "update policy", tokens)},
    )
    outputs = LossOutputs(logprobs, 1.0 - 0.1 * logprobs, -logprobs)
    loss = checked_loss(_called("compute_loss(batch, outputs)", compute_loss, batch, outputs), logprobs)
    checked("compute_loss", batch.figures)
    if not loss.requires_grad:
        raise DataError(
            "compute_loss returned a loss without a gradient",
            fix="compute it from outputs.logprobs or outputs.entropy, without detach() on all of them",
        )


def _called(name: str, hook: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return hook(*arguments)
    except Exception as error:  # whatever a user's code raises is that code's fault
        raise DataError(
            f"{name} fails on a made-up batch: {type(error).__name__}: {error}",
            fix="docs/rl-training.md lists what it is given and must return",
        ) from error


def _made_up(vocabulary: int) -> TokenBatch:
    offsets = np.cumsum([0, *_LENGTHS])
    total = int(offsets[-1])
    mask = np.ones(total, np.bool_)
    for start in offsets[:-1]:
        mask[start : start + _PROMPT] = False
    return TokenBatch(
        token_ids=np.arange(total, dtype=np.int64) % vocabulary,
        behaviour_logprobs=np.where(mask, -1.5, 0.0).astype(np.float32),
        loss_mask=mask,
        versions=np.where(mask, 0, -1).astype(np.int64),
        offsets=offsets.astype(np.int64),
        group_ids=np.array([0, 0, 1, 1], np.int64),
        sample_indices=np.array([0, 1, 0, 1], np.int64),
        rewards=np.array([1.0, 0.0, 0.0, 1.0]),
        truncated=np.array([False, False, True, False]),
    )
