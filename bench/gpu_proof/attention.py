"""Attention by segments and by blocks against the mask in float32, on packed rows with shared prompts."""

from __future__ import annotations

import numpy as np
import torch
from areal_trainer.data.micro_batches import MicroBatch
from areal_trainer.engine import attention as product
from areal_trainer.engine.attention import block_mask_of, layout_of
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gpu_proof.cell import Measuring
from gpu_proof.parts import batch, cosine, micros

HEADS, KEYS, WIDTH = 4, 2, 64
LAYOUTS = 20
WINDOW = 48  # tokens, of sequences of 60 and more


def states(micro: MicroBatch, device: torch.device, seed: int = 0, keys: int = KEYS) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values of its tokens, [rows, heads, length, width] in bfloat16."""
    rows, length = micro.input_ids.shape
    random = torch.Generator().manual_seed(seed)
    made = (torch.randn(rows, heads, length, WIDTH, generator=random) for heads in (HEADS, keys, keys))
    query, key, value = (one.to(device, torch.bfloat16) for one in made)
    return query, key, value


def exact(micro: MicroBatch, query: Tensor, key: Tensor, value: Tensor, window: int | None = None) -> Tensor:
    """By the mask in float32, [rows, length, heads, width]; a window is of positions, which restart with a sequence."""
    mask = micro.attention_mask().to(query.device)
    if window is not None:
        places = micro.position_ids.to(query.device)
        mask = mask & (places[:, None, :, None] - places[:, None, None, :] < window)
    copies = query.shape[1] // key.shape[1]
    key, value = (one.float().repeat_interleave(copies, dim=1) for one in (key, value))
    return scaled_dot_product_attention(query.float(), key, value, mask).transpose(1, 2)


def ours(
    micro: MicroBatch, query: Tensor, key: Tensor, value: Tensor, *, blocks: bool = False, window: int | None = None
) -> Tensor:
    """As the trainer's models call it."""
    layout = (block_mask_of if blocks else layout_of)(micro, query.device)
    return product._forward(None, query, key, value, None, layout=layout, sliding_window=window)[0].float()


def apart(
    micro: MicroBatch, seed: int = 0, *, device: torch.device, blocks: bool = False, window: int | None = None
) -> float:
    """The largest difference from the mask's."""
    given = states(micro, device, seed)
    with torch.no_grad():
        found = ours(micro, *given, blocks=blocks, window=window)
        return float((found - exact(micro, *given, window)).abs().max())


def angle(micro: MicroBatch, *, device: torch.device, blocks: bool = False) -> float:
    """The smallest cosine between gradients of queries, keys and values, and the mask's."""
    found: list[list[Tensor]] = []
    for attend in (lambda *given: ours(micro, *given, blocks=blocks), lambda *given: exact(micro, *given)):
        given = [one.requires_grad_() for one in states(micro, device)]
        out = attend(*given)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(device)
        found.append(list(torch.autograd.grad((out * weights).sum(), given)))
    return min(cosine(one, other) for one, other in zip(*found, strict=True))


def attention(proof: Measuring) -> None:
    """The cell."""
    device = proof.device
    single = micros(batch(6, 1, (40, 100)), 384, 384)[0]
    shared = micros(batch(3, 3, (60, 100)), 512, 512)[0]
    proof.measured("varlen-causal", apart(single, device=device))
    proof.measured("varlen-prefix", apart(shared, device=device))
    random = np.random.default_rng(0)
    drawn = [batch(int(random.integers(1, 4)), int(random.integers(1, 5)), (16, 80), seed=n) for n in range(LAYOUTS)]
    proof.measured("varlen-lengths", max(apart(micros(one, 256, 256)[0], 1, device=device) for one in drawn))
    proof.measured("varlen-window", apart(shared, device=device, window=WINDOW))
    query, key, value = states(shared, device)
    copied = [one.repeat_interleave(HEADS // KEYS, dim=1) for one in (key, value)]
    with torch.no_grad():
        gap = (ours(shared, query, key, value) - ours(shared, query, *copied)).abs().max()
    proof.measured("varlen-gqa", float(gap))
    proof.measured("varlen-gradient", angle(shared, device=device))
    proof.measured("flex-blocks", apart(shared, device=device, blocks=True))
    if proof.cuda:
        proof.measured("flex-gradient", angle(shared, device=device, blocks=True))


FUNCTIONS = {"attention": attention}
