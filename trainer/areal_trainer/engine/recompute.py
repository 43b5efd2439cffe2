"""Activation checkpointing: what a transformer block's forward pass doesn't keep for the backward pass.

Owns the modes: `full` keeps a block's input and computes the rest again, `offload` keeps that input in host memory,
`selective` keeps besides it the attention's output and every second matrix product. Gradients are the same in all.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from areal.spec.training import Recompute
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_varlen_attn",
    "flash_attention",
)


def recompute(block: nn.Module, mode: Recompute) -> None:
    """Make the block's forward pass keep less. Inside FSDP's hooks, so a block is gathered as often as without."""
    if mode == "none":
        return
    again = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)  # nothing is random
    if mode == "selective":
        made: Any = create_selective_checkpoint_contexts
        again = partial(again, context_fn=lambda: made(_every_second()))  # of one pass through one block
    whole = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return whole(*args, **kwargs)
        with save_on_cpu(pin_memory=torch.cuda.is_available()) if mode == "offload" else nullcontext():
            return again(*args, **kwargs)

    block.forward = forward


def _every_second() -> Callable[..., CheckpointPolicy]:
    seen = {False: 0, True: 0}  # matrix products of the forward pass, and of its repetition

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        keep = getattr(op, "_opname", "") in _ATTENTION
        if op in _PRODUCTS:
            seen[ctx.is_recompute] += 1
            keep = seen[ctx.is_recompute] % 2 == 0
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return policy
