"""Attention over packed rows by segments (varlen) or blocks (flex): no mask of length × length is made.

Registered with transformers as an attention implementation, so models stay Hugging Face's. On CUDA the segments go to
PyTorch's variable-length flash attention, elsewhere one by one to scaled dot product attention; blocks to
FlexAttention. Without a layout it is `sdpa`, the exact reference, which takes any mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import scaled_dot_product_attention

from areal_trainer.engine import flex
from areal_trainer.engine.context import Context
from areal_trainer.engine.layout import SegmentLayout

PACKED = "areal_packed"


def register() -> None:
    """Make the implementation known to transformers, by the name PACKED."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(PACKED, _forward)
    AttentionMaskInterface.register(PACKED, _no_mask)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Segments and blocks say what a mask would; without any, attention is causal."""


def _forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    layout: SegmentLayout | BlockMask | None = None,
    context: Context | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: [rows, heads, length, width] in, [rows, length, heads, width] out.

    With a context the tokens are this rank's, `attention_mask` and `layout` are of all.
    """
    if context is None:
        return _attend(module, query, key, value, attention_mask, scaling, layout, **kwargs)
    query, key, value = (context.by_heads(states) for states in (query, key, value))
    if layout is None:
        out = scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling, enable_gqa=True)
        return context.by_tokens(out.transpose(1, 2)), None
    out, _ = _attend(module, query, key, value, None, scaling, layout)
    return context.by_tokens(out), None


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None,
    layout: SegmentLayout | BlockMask | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if layout is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return result
    if isinstance(layout, BlockMask):
        return flex.attend(query, key, value, layout, scaling), None
    rows, heads, length, width = query.shape
    q, k, v = (tensor.transpose(1, 2).reshape(rows * length, -1, width) for tensor in (query, key, value))
    if layout.key_index is not None:
        k, v = k.index_select(0, layout.key_index), v.index_select(0, layout.key_index)
    attend = _on_cuda if query.is_cuda else _one_by_one
    out = attend(q, k, v, layout, scaling if scaling is not None else width**-0.5)
    return out.reshape(rows, length, heads, width), None


def _on_cuda(query: Tensor, key: Tensor, value: Tensor, layout: SegmentLayout, scale: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(
        query,
        key,
        value,
        layout.query_starts,
        layout.key_starts,
        layout.longest_query,
        layout.longest_key,
        scale=scale,
        window_size=(-1, 0),  # causal; the default is not
        enable_gqa=True,
    )
    assert isinstance(out, Tensor)  # two only where the log-sum-exp is asked for
    return out


def _one_by_one(query: Tensor, key: Tensor, value: Tensor, layout: SegmentLayout, scale: float) -> Tensor:
    group = query.shape[1] // key.shape[1]
    parts = []
    queries, keys = layout.query_starts.tolist(), layout.key_starts.tolist()
    for at in range(len(queries) - 1):
        q = query[queries[at] : queries[at + 1]].transpose(0, 1)[None]
        k, v = (
            whole[keys[at] : keys[at + 1]].repeat_interleave(group, dim=1).transpose(0, 1)[None]
            for whole in (key, value)
        )
        more = k.shape[2] - q.shape[2]
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(more) if more else None
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)
