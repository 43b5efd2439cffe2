"""The canary: tokens that every server scores after a swap, and what they must come out as.

The tokens are a fixed passage and what the start model says after it, because a model is sure of what it says: rounding
moves those log-probabilities little, a wrong tensor moves them far. What rounding does is measured when the trainer
starts, on the same tokens, and bounds the mean difference. Scored by the engine that trains, at temperature 1.

A stale version can't be told by it: neighbouring versions differ by less than bfloat16 rounds. Digests tell those.
"""

import gc
import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from areal.weights.manifest import Canary, difference
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from areal_trainer.data.batch import unsampled
from areal_trainer.engine.engine import PolicyEngine
from areal_trainer.engine.group import RankMessage

_log = logging.getLogger(__name__)

PASSAGE = (
    "Water moves in a circle. The sun warms the sea, and some of the water rises into the air as vapour. High up it "
    "is cold, so the vapour turns into small drops, and the drops form clouds. When the drops grow heavy they fall as "
    "rain or snow. Rivers carry the water back to the sea, and the circle begins again. Plants take some of it from "
    "the soil."
)
PASSAGE_TOKENS = 64
CONTINUED_TOKENS = 64
RESERVED = 8  # places of a context that SGLang takes no input for; six were seen
RANDOM_TOKENS = 32  # instead of the passage, for vocabularies without words
_FEWEST_WORDS = 16  # different tokens; below, the tokenizer does not know the passage's language

WORST_FLOAT32 = 1e-3  # other kernels round differently: 1e-5 in float32
WORST_BFLOAT16 = 1.0  # single tokens differ by half a nat between right kernels; the mean decides
MEAN_BFLOAT16 = 0.02  # at least; two kernels of one engine differ by this much
SPREADS = 3.0  # the mean may be this many times what bfloat16 alone does to the trainer's own


@dataclass(frozen=True)
class CanaryProbe:
    """The canary's tokens, and how far apart the trainer's own float32 and bfloat16 are on them."""

    token_ids: NDArray[np.int64]
    spread: float | None  # mean difference of log-probabilities; None: trainer and servers compute in float32


def prepare(
    engine: PolicyEngine, tokenizer: Path, *, served_in_bfloat16: bool = False, context: int | None = None
) -> CanaryProbe:
    """Choose the tokens and measure rounding. A collective, to be called while the engine holds the start model.

    There are fewer than servers take, `context` or the model's: SGLang keeps a few of it free.

    In bfloat16 the start model is held a second time, before the optimizer has its moments; on return it is gone.
    """
    longest = min(engine.max_positions, context or engine.max_positions) - RESERVED
    beginning = _beginning(tokenizer, engine.vocabulary, longest)
    made = engine.most_likely(beginning, min(CONTINUED_TOKENS, longest - len(beginning)))
    told = engine.ranks.tell(RankMessage({}, {"token_ids": made}))  # as rank 0 has it
    ids = np.concatenate([beginning, told.arrays["token_ids"].astype(np.int64)])
    half = engine.options.precision == "bfloat16"
    if not half and not served_in_bfloat16:
        return CanaryProbe(ids, None)
    options = replace(engine.options, precision="float32" if half else "bfloat16", attention="dense")
    other = PolicyEngine(engine.model_path, options, engine.ranks)
    try:
        found = difference(_score(engine, ids)[1:].tolist(), _score(other, ids)[1:].tolist())
    finally:
        del other
        gc.collect()  # FSDP's states, hooks and modules refer to each other
        if engine.ranks.device.type == "cuda":
            torch.cuda.empty_cache()
    _log.info(
        "canary: %d tokens, bfloat16 differs by %.3g in the mean, %.3g at most", len(ids), found.mean, found.worst
    )
    return CanaryProbe(ids, found.mean)


def canary(engine: PolicyEngine, probe: CanaryProbe) -> Canary:
    """The canary of the engine's weights. A collective: all ranks call it."""
    rough = probe.spread is not None
    return Canary(
        token_ids=tuple(int(token) for token in probe.token_ids),
        logprobs=tuple(float(value) for value in _score(engine, probe.token_ids)),
        tolerance=WORST_BFLOAT16 if rough else WORST_FLOAT32,
        mean_tolerance=None if probe.spread is None else max(MEAN_BFLOAT16, SPREADS * probe.spread),
    )


def _beginning(tokenizer: Path, vocabulary: int, positions: int) -> NDArray[np.int64]:
    """The passage in the tokenizer's words; random tokens when it has none, the same for a vocabulary."""
    file = tokenizer / "tokenizer.json"
    if file.is_file():
        known = [
            token
            for token in Tokenizer.from_file(str(file)).encode(PASSAGE, add_special_tokens=False).ids
            if token < vocabulary
        ]
        if len(set(known[:PASSAGE_TOKENS])) >= _FEWEST_WORDS:
            return np.array(known[: min(PASSAGE_TOKENS, positions)], np.int64)
    return np.random.default_rng(0).integers(0, vocabulary, min(RANDOM_TOKENS, positions))


def _score(engine: PolicyEngine, token_ids: NDArray[np.int64]) -> Tensor:
    length = len(token_ids)
    tokens = unsampled(token_ids, [length], [0])
    micros = engine.micros(tokens, np.zeros(1, np.int64), tokens.trainable(), length, length)
    return engine.logprobs(micros, length, temperature=1.0)
