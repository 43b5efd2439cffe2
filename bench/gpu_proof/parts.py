"""Models and batches that the cells share, and how numbers are compared."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from areal.admit.memory.shape import ModelShape, shape_of
from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import MicroBatch, rank_micro_batches
from areal_trainer.engine.adam_states import AdamWOptions
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.optimizer import local
from torch import Tensor


def _config(family: str, sizes: tuple[int, ...], layers: int, **more: Any) -> dict[str, Any]:
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    return {
        "model_type": family, **dict(zip(names, sizes, strict=True)), "num_hidden_layers": layers,
        "max_position_embeddings": 65_536, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
        **more,
    }  # fmt: skip


MODELS = {
    "small": _config("qwen3", (128, 256, 4, 2, 512), 3, head_dim=64, tie_word_embeddings=True),
    "0.5b": _config("qwen2", (896, 4864, 14, 2, 151_936), 24, tie_word_embeddings=True),
    "1.5b": _config("qwen2", (1536, 8960, 12, 2, 151_936), 28, tie_word_embeddings=True),
    "8b-eight": _config("qwen3", (4096, 12_288, 32, 8, 151_936), 8, head_dim=128),
    "8b-third": _config("qwen3", (4096, 12_288, 32, 8, 151_936), 12, head_dim=128),
}
"""Shapes of released models, but for `small`; weights are random."""


def shape(name: str, **changes: Any) -> ModelShape:
    """The model's shape, as plans of memory take it."""
    found = shape_of({**MODELS[name], **changes})
    assert found is not None
    return found


def model(name: str, work: Path, device: torch.device, *, scale: float = 1.0, **changes: Any) -> Path:
    """A Hugging Face directory of random bfloat16 weights; `scale` multiplies the embedding's and the head's."""
    from transformers import AutoConfig, AutoModelForCausalLM

    out = work / "-".join([name, *(f"{key}{value}" for key, value in changes.items())])
    if out.exists():
        return out
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**MODELS[name], **changes})
    with device:
        made: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        made.get_output_embeddings().weight.mul_(scale)
    made.save_pretrained(out)
    return out


def engine(path: Path, ranks: RankGroup, *, state: Any = "float32", **options: Any) -> PolicyEngine:
    """The trainer's engine, in bfloat16 and by segments unless `options` say otherwise."""
    usual: dict[str, Any] = {"precision": "bfloat16", "attention": "varlen", "optimizer": AdamWOptions(state=state)}
    return PolicyEngine(path, ModelOptions(**{**usual, **options}), ranks)


def drop() -> None:
    """Give back what nobody has any more: FSDP's states, hooks and modules refer to each other."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def alone() -> Iterator[RankGroup]:
    """One rank."""
    ranks = RankGroup()
    try:
        yield ranks
    finally:
        ranks.close()


def batch(groups: int, size: int, lengths: tuple[int, int], *, seed: int = 0, vocabulary: int = 512) -> TokenBatch:
    """Groups of `size` sequences that share a prompt, each of so many tokens from the one to the other."""
    random = np.random.default_rng(seed)
    rows: list[np.ndarray] = []
    for _ in range(groups):
        prompt = random.integers(0, vocabulary, int(random.integers(lengths[0] // 4, lengths[0] // 2)))
        for _ in range(size):
            more = int(random.integers(lengths[0], lengths[1] + 1)) - len(prompt)
            rows.append(np.concatenate([prompt, random.integers(0, vocabulary, more)]))
    return ragged(rows, np.arange(groups).repeat(size))


def ragged(rows: list[np.ndarray], groups: np.ndarray) -> TokenBatch:
    """Sequences of tokens, each of a group, of which all but the first are trained."""
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    count = int(offsets[-1])
    return TokenBatch(
        token_ids=np.concatenate(rows).astype(np.int64),
        behaviour_logprobs=np.zeros(count, np.float32),
        loss_mask=np.ones(count, np.bool_),
        versions=np.zeros(count, np.int64),
        offsets=offsets,
        group_ids=groups.astype(np.int64),
        sample_indices=np.arange(len(rows), dtype=np.int64),
        rewards=np.zeros(len(rows)),
        truncated=np.zeros(len(rows), np.bool_),
    )


def documents(count: int, length: int, vocabulary: int) -> TokenBatch:
    """So many documents of so many random tokens, a group each."""
    random = np.random.default_rng(0)
    return ragged([random.integers(0, vocabulary, length) for _ in range(count)], np.arange(count))


def micros(tokens: TokenBatch, room: int, length: int | None = None) -> list[MicroBatch]:
    """All of it in micro-batches of `room` tokens, in rows of `length`."""
    return rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=room,
        pack_length=length,
    )  # fmt: skip


def likelihood(tokens: TokenBatch) -> Callable[[Tensor, Tensor, MicroBatch], Tensor]:
    """A loss: the mean log-probability of what is trained, negative."""
    count = int(tokens.trainable().sum())
    return lambda logprobs, _entropy, _micro: -logprobs.sum() / count


def step(policy: PolicyEngine, tokens: TokenBatch, parts: list[MicroBatch], rate: float = 1e-3) -> float:
    """One update; the loss before it."""
    loss = policy.accumulate(parts, likelihood(tokens))
    policy.optimizer.step(rate, loss)
    return float(loss)


def gradients(policy: PolicyEngine) -> dict[str, Tensor]:
    """This rank's gradients in float32, which the engine then has no more."""
    found: dict[str, Tensor] = {}
    for name, parameter in policy.trained().items():
        if parameter.grad is not None:
            found[name] = local(parameter.grad).float()
        parameter.grad = None
    return found


def off(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> float:
    """The largest relative norm of a difference, over tensors; not a number where one is lacking."""
    if found.keys() != exact.keys():
        return float("nan")
    return max(float((found[name] - one).norm() / (one.norm() + 1e-12)) for name, one in exact.items())


def cosine(found: Tensor, exact: Tensor) -> float:
    """Of the angle between two tensors."""
    left, right = found.double().flatten(), exact.double().flatten()
    return float(left @ right / (left.norm() * right.norm() + 1e-300))


def directions(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> float:
    """The smallest cosine over tensors; not a number where one is lacking."""
    if found.keys() != exact.keys():
        return float("nan")
    return min(cosine(found[name], one) for name, one in exact.items())


def mean_difference(found: Tensor, exact: Tensor) -> float:
    """Of two tensors of the same numbers."""
    return float((found - exact).abs().mean())


def differing(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> int:
    """How many numbers differ bit by bit; those of a tensor that one lacks, too."""
    count = sum(one.numel() for name, one in exact.items() if name not in found)
    count += sum(one.numel() for name, one in found.items() if name not in exact)
    for name in found.keys() & exact.keys():
        one, other = found[name].cpu().contiguous(), exact[name].cpu().contiguous()
        if one.dtype != other.dtype or one.shape != other.shape:
            count += other.numel()
        else:
            count += int((one.view(torch.uint8) != other.view(torch.uint8)).sum())
    return count
