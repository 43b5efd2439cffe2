"""Start-up self-check: packed sequences, such that share a prompt, and one alone get the same log-probabilities.

Some models look past the block-causal mask (recurrent layers, convolutions) and would learn from a mixture of samples.
Their numbers differ by whole nats, rounding's by thousandths, so three passes tell. Alone means by the mask: attention
without one is compared with it, too.
"""

from __future__ import annotations

import numpy as np
import torch
from areal.errors import DataError
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.engine import PolicyEngine

WORST_FLOAT32 = 1e-4
MEAN_BFLOAT16 = 0.02  # at least


def check_packing(engine: PolicyEngine, token_ids: NDArray[np.int64], spread: float | None) -> None:
    """Score two sequences made of `token_ids` each way. A collective.

    `spread` is how far bfloat16 moves this model's log-probabilities in the mean. Raises DataError with the numbers.
    """
    half = len(token_ids) // 2
    lengths = [len(token_ids), 2 * half]
    ids = np.concatenate([token_ids, token_ids[:half], token_ids[:half][::-1]])
    alone = _score(engine, ids, lengths, groups=(0, 1), together=False, masked=True)
    if not bool(torch.isfinite(alone).all()):
        raise DataError(f"{engine.model_path} gives log-probabilities that are no numbers", fix="check its weights")
    for name, groups in (("packed with others", (0, 1)), ("sharing a prompt", (0, 0))):
        apart = (_score(engine, ids, lengths, groups=groups, together=True) - alone).abs()
        mean, worst = float(apart.mean()), float(apart.max())
        rough = engine.options.precision == "bfloat16"
        bound = max(MEAN_BFLOAT16, 3 * (spread or 0.0)) if rough else WORST_FLOAT32
        if not (mean if rough else worst) <= bound:
            raise DataError(
                f"{engine.model_path} scores a sequence {name} otherwise than alone: {mean:.3g} in the mean, "
                f"{worst:.3g} at most, {bound:.3g} is allowed",
                fix="use a model whose layers all obey the attention mask: docs/models.md lists families",
            )


def _score(
    engine: PolicyEngine,
    ids: NDArray[np.int64],
    lengths: list[int],
    *,
    groups: tuple[int, int],
    together: bool,
    masked: bool = False,
) -> Tensor:
    offsets = np.cumsum([0, *lengths]).astype(np.int64)
    batch = TokenBatch(
        token_ids=ids,
        behaviour_logprobs=np.zeros(len(ids), np.float32),
        loss_mask=np.ones(len(ids), np.bool_),
        versions=np.zeros(len(ids), np.int64),
        offsets=offsets,
        group_ids=np.array(groups, np.int64),
        sample_indices=np.arange(2),
        rewards=np.zeros(2, np.float64),
        truncated=np.zeros(2, np.bool_),
    )
    micros = []
    for chosen in [np.arange(2)] if together else [np.array([0]), np.array([1])]:
        length = sum(lengths) if together else max(lengths)
        micros += rank_micro_batches(
            batch, chosen, batch.trainable(), rank=0, world_size=1, micro_batch_tokens=length, pack_length=length
        )
    return engine.logprobs(micros, len(ids), masked=masked) / engine.ranks.data_size  # every data rank scored all of it
