"""The canary: tokens that every server scores after a swap, and what they must come out as.

Scored by the engine that trains, at temperature 1. The tokens are the same for a vocabulary, whatever the run.
"""

from __future__ import annotations

import numpy as np
from areal.weights.manifest import Canary

from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.engine import Engine

TOKENS = 32  # enough to touch every layer and many embeddings; scored in milliseconds
# Other kernels round differently: 1e-5 in float32. A wrong tensor moves log-probabilities by tenths.
TOLERANCE_FLOAT32 = 1e-3
TOLERANCE_BFLOAT16 = 0.1


def canary(engine: Engine, *, served_in_bfloat16: bool = False) -> Canary:
    """The canary of the engine's weights. A collective: all ranks call it."""
    length = min(TOKENS, engine.max_positions)
    token_ids = np.random.default_rng(0).integers(0, engine.vocabulary, length)
    mask = np.ones(length, np.bool_)
    tokens = TokenBatch(
        token_ids=token_ids.astype(np.int64),
        behaviour_logprobs=np.zeros(length, np.float32),
        loss_mask=mask,
        versions=np.zeros(length, np.int64),
        offsets=np.array([0, length], np.int64),
        group_ids=np.zeros(1, np.int64),
        sample_indices=np.zeros(1, np.int64),
        rewards=np.zeros(1, np.float64),
        truncated=np.zeros(1, np.bool_),
    )
    micros = rank_micro_batches(
        tokens,
        np.zeros(1, np.int64),
        tokens.trainable(),
        rank=engine.ranks.rank,
        world_size=engine.ranks.world_size,
        micro_batch_tokens=length,
        pack_length=length,
    )
    logprobs = engine.logprobs(micros, length, temperature=1.0)
    rough = served_in_bfloat16 or engine.options.precision == "bfloat16"
    return Canary(
        token_ids=tuple(int(token) for token in token_ids),
        logprobs=tuple(float(value) for value in logprobs),
        tolerance=TOLERANCE_BFLOAT16 if rough else TOLERANCE_FLOAT32,
    )
