"""Compiled transformer blocks (torch.compile): a block's small operations fused into fewer kernels.

Owns what is compiled: the forward pass of a block as a whole, with what its backward pass computes again. All blocks of
a model share their graphs, whatever the length of their rows: one for training and one for passes without gradient,
each again where a micro-batch has several rows. A block that can't be compiled whole is an error, never slow in
silence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_MOST_GRAPHS = 64  # of one class of blocks: of policy, critic, reference and teacher, by a mask and by segments


def compile_block(block: nn.Module) -> None:
    """Compile the block's forward pass, at its first call. After `recompute`, before FSDP's hooks.

    A pass with a key-value cache stays as it is: there are few, each of another shape.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_GRAPHS)
    as_it_is = block.forward
    compiled = torch.compile(as_it_is, dynamic=True, fullgraph=True)

    def forward(*args: Any, **kwargs: Any) -> Any:
        cached = kwargs.get("past_key_values") is not None
        return (as_it_is if cached else compiled)(*args, **kwargs)

    block.forward = forward
