"""Start-up self-check: packed sequences, such that share a prompt, and one alone get the same log-probabilities.

Some models look past the block-causal mask (recurrent layers, convolutions) and would learn from a mixture of samples.
Their numbers differ by whole nats, rounding's by thousandths, so a few passes tell. Alone means by the mask: attention
without one is compared with it, too. All of these go through this trainer's attention and output layer; what it leaves
out shows beside the family's own, on a sequence that is longer than a sliding window.
"""

import numpy as np
import torch
from areal.errors import DataError
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.data.batch import unsampled
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.engine import PolicyEngine

WORST_FLOAT32 = 1e-4
MEAN_BFLOAT16 = 0.02  # at least
OWN_MEAN_BFLOAT16 = (
    0.1  # the family's output layer rounds its logits, whatever this one does; what is left out moves more
)
OWN_TOKENS = 32  # compared with the family's own code
MOST_TOKENS = 8192  # of a sequence, or the check would take more memory than a step


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
    rough = engine.options.precision == "bfloat16"

    def compare(ours: Tensor, right: Tensor, least: float, how: str, fix: str) -> None:
        bound = max(least, 3 * (spread or 0.0)) if rough else WORST_FLOAT32
        apart = (ours - right).abs()
        mean, worst = float(apart.mean()), float(apart.max())
        if not (mean if rough else worst) <= bound:
            raise DataError(
                f"{engine.model_path} scores a sequence {how}: {mean:.3g} in the mean, {worst:.3g} at most, "
                f"{bound:.3g} is allowed",
                fix=fix,
            )

    for name, groups in (("packed with others", (0, 1)), ("sharing a prompt", (0, 0))):
        packed = _score(engine, ids, lengths, groups=groups, together=True)
        masks = "use a model whose layers all obey the attention mask: docs/models.md lists families"
        compare(packed, alone, MEAN_BFLOAT16, f"{name} otherwise than alone", masks)
    long = _beyond_window(engine, token_ids)
    count = min(OWN_TOKENS, len(long) - 1)
    ours = _score(engine, long, [len(long)], groups=(0,), together=True)[-count:]
    family = "use a model of a family that docs/models.md lists as compared"
    own = engine.own_logprobs(long, count)
    compare(ours, own, OWN_MEAN_BFLOAT16, "otherwise than transformers' own code for its family", family)


def _beyond_window(engine: PolicyEngine, token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The tokens, again and again until a window is behind the last ones; as they are where it is wider than that."""
    length = (engine.window or 0) + OWN_TOKENS + 1
    if length <= len(token_ids) or length > min(engine.max_positions, MOST_TOKENS):
        return token_ids
    return np.resize(token_ids, length)


def _score(
    engine: PolicyEngine,
    ids: NDArray[np.int64],
    lengths: list[int],
    *,
    groups: tuple[int, ...],
    together: bool,
    masked: bool = False,
) -> Tensor:
    batch = unsampled(ids, lengths, groups)
    micros = []
    for chosen in [np.arange(len(lengths))] if together else [np.array([0]), np.array([1])]:
        length = sum(lengths) if together else max(lengths)
        micros += rank_micro_batches(
            batch, chosen, batch.trainable(), rank=0, world_size=1, micro_batch_tokens=length, pack_length=length
        )
    return engine.logprobs(micros, len(ids), masked=masked) / engine.ranks.data_size  # every data rank scored all of it
