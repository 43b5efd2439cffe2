"""LoRA adapters in the embedded engine's forward pass: applied beside the fused weights, never merged into them.

In bfloat16 a merged weight would round away what base and adapter compute apart. The adapters of matrices that are
fused (query, key, value; gate, up) are one pair of matrices: A stacked, B block-diagonal.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class FusedBlock:
    """Where one module's matrices lie in the fused pair."""

    module: str  # below its layer: self_attn.q_proj, …
    rows: slice  # of B
    ranks: slice  # rows of A, columns of B
    rotary: bool  # rows of B are permuted as the layer's query and key are


@dataclass(frozen=True)
class Adapter:
    """B·(A·x)·scale of one fused matrix."""

    a: Tensor  # [ranks, in]
    b: Tensor  # [out, ranks]
    scale: float
    blocks: tuple[FusedBlock, ...]


@dataclass(frozen=True)
class LayerAdapter:
    """The adapters of one decoder layer, each beside the matrix of the same name."""

    qkv: Adapter | None = None
    out: Adapter | None = None
    gate_up: Adapter | None = None
    down: Adapter | None = None


NONE = LayerAdapter()


def add(adapter: Adapter | None, output: Tensor, x: Tensor) -> Tensor:
    """`output` [n, out] and what the adapter, if there is one, makes of `x` [n, in]."""
    if adapter is None:
        return output
    return torch.addmm(output, F.linear(x, adapter.a), adapter.b.t(), alpha=adapter.scale)
