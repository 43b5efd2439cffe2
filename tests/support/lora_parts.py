"""Adapters in tests: a step that trains them, their files as peft reads them, and scores by a model of transformers."""

from __future__ import annotations

import numpy as np
import torch
from areal.weights.adapter import ADAPTER_CONFIG
from areal_trainer.data.micro_batches import rank_micro_batches
from safetensors.torch import save_file
from support.trainer_parts import batch


def micros_of(tokens):
    return rank_micro_batches(
        tokens,
        np.arange(tokens.sequences),
        tokens.trainable(),
        rank=0,
        world_size=1,
        micro_batch_tokens=64,
        pack_length=None,
    )


def train(engine, seed, rate=1e-2):
    engine.accumulate(micros_of(batch(3, 4, seed=seed)), lambda logprobs, entropy, micro: -logprobs.sum() / 50)
    return engine.optimizer.step(rate)


def exported(engine, path):
    path.mkdir()
    save_file({name: tensor.clone() for name, tensor in engine.export()}, path / "adapter_model.safetensors")
    (path / ADAPTER_CONFIG).write_bytes(engine.options.adapter.to_bytes("base"))
    return path


def scores(model, tokens) -> list[torch.Tensor]:
    """Log-probability of each token behind the first, a sequence at a time, by a model of transformers."""
    found = []
    for begin, end in zip(tokens.offsets[:-1].tolist(), tokens.offsets[1:].tolist(), strict=True):
        ids = torch.from_numpy(tokens.token_ids[begin:end])[None]
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        found.append(torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0])
    return found
