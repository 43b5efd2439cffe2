"""A tiny model and synthetic batches for the trainer's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from areal.v1 import common_pb2 as common
from areal_trainer.data.batch import TokenBatch, columns
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from torch import Tensor

VOCABULARY = 24


def tiny_model(path: Path, *, seed: int = 0, hidden: int = 32, layers: int = 2) -> Path:
    """A Qwen3 with tied embeddings and random weights that are always the same for a seed."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def whole_model(path: Path) -> Any:
    """The model as Hugging Face loads it, in float32: the reference."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")


def sample(
    group: int,
    index: int,
    *,
    seed: int = 0,
    version: int = 0,
    staleness: int = 2,
    policy: str | None = None,
    reward: float | None = None,
    shared: bool = False,
) -> common.Sample:
    """A synthetic sample: a random prompt, a random answer, log-probabilities near −3."""
    random = np.random.default_rng((seed, group, index))
    prompt, answer = int(random.integers(1, 6)), int(random.integers(1, 8))
    asked = np.random.default_rng((seed, group))  # the group's prompt, when it is shared
    prompt = int(asked.integers(1, 9)) if shared else prompt
    length = prompt + answer
    ids = random.integers(0, VOCABULARY, length)
    if shared:
        ids[:prompt] = asked.integers(0, VOCABULARY, prompt)
    mask = np.zeros(length, np.uint8)
    mask[prompt:] = 1
    logprobs = np.where(mask == 1, random.normal(-3.2, 0.3, length), 0.0)
    name = policy or f"{version}.f1"
    sequence = common.TokenSequence(
        token_ids=ids.astype("<i4").tobytes(),
        logprobs=logprobs.astype("<f4").tobytes(),
        loss_mask=mask.tobytes(),
        spans=[common.Span(start=prompt, end=length, policy_id=name, server_id="s")],
        reward=float(random.integers(0, 2)) if reward is None else reward,
        finish_reason="stop",
    )
    return common.Sample(
        key=common.SampleKey(group=group, index=index, attempt=1),
        sequences=[sequence],
        max_staleness=staleness,
        oldest_version=version,
        worker_id="w",
    )


def batch(groups: int, size: int = 4, *, seed: int = 0, version: int = 0, shared: bool = False) -> TokenBatch:
    """Columns of `groups` synthetic groups."""
    samples = [sample(g, i, seed=seed, version=version, shared=shared) for g in range(groups) for i in range(size)]
    return columns(samples, VOCABULARY)


def gradients(path: Path, ranks: RankGroup, *, length: int = 64, **options: Any) -> dict[str, Tensor]:
    """By parameter, after micro-batches of 64 tokens in rows of `length`; "" is log-probabilities, asked before."""
    tokens = batch(4, 4, shared=True)
    micros = rank_micro_batches(
        tokens, np.arange(16), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64, pack_length=length
    )
    assert len(micros) > 1
    engine = PolicyEngine(path, ModelOptions(**options), ranks)
    logprobs = engine.logprobs(micros, tokens.tokens)
    engine.accumulate(micros, lambda values, entropy, micro: (-values.sum() + 0.1 * entropy.sum()) / 100)
    return {"": logprobs} | {name: parameter.grad.full_tensor() for name, parameter in engine._parameters.items()}
