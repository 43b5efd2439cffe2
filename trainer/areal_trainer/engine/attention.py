"""Attention over packed rows by segments (varlen) or blocks (flex): no mask of length × length is made.

Registered with transformers as an attention implementation, so models stay Hugging Face's. On CUDA the segments go to
PyTorch's variable-length flash attention, elsewhere one by one to scaled dot product attention; blocks to
FlexAttention. Without a layout it is `sdpa`, the exact reference, which takes any mask. A layer's sliding window counts
within its sequence; what else a family asks of attention is refused, not left out.

A segment is a run of tokens of one sequence, or the prompt that several share. Its keys are the shared prompt and
itself; causality is aligned at the end (bottom-right), which means just that: the prompt, then me. With blocks a shared
prompt's keys are not copied for each answer, as segments need; they are counted from the layout, on the host. Without
CUDA PyTorch has no gradient of FlexAttention, and computes all scores.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from areal.errors import DataError
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

from areal_trainer.data.micro_batches import MicroBatch, segments_of, sent
from areal_trainer.engine import flash
from areal_trainer.engine.context import Context

PACKED = "areal_packed"
# Keywords of a call that need no answer: they change nothing here, or the layout says it.
_ANSWERED = ("dropout", "is_causal", "output_attentions", "position_ids", "use_cache")
_SHARES_KEYS = "enable_gqa" in inspect.signature(varlen_attn).parameters  # torch 2.11 has no such argument


def register() -> None:
    """Make the implementation known to transformers, by the name PACKED.

    Without a mask transformers looks for packed sequences in the positions, and the host waits for the answer in each
    forward pass. A layout says where they are.
    """
    from transformers import AttentionInterface, masking_utils

    AttentionInterface.register(PACKED, _forward)
    masking_utils.AttentionMaskInterface.register(PACKED, _no_mask)
    masking_utils.find_packed_sequence_indices = _no_mask


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
    sliding_window: int | None = None,
    layout: "SegmentLayout | BlockMask | None" = None,
    context: Context | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: [rows, heads, length, width] in, [rows, length, heads, width] out.

    With a context the tokens are this rank's, `attention_mask` and `layout` are of all. `sliding_window` counts the
    tokens that one looks at, itself among them. `s_aux` [heads] are sinks: scores of a key that holds nothing.
    """
    _refuse_unknown(module, kwargs)
    if s_aux is not None and (context is not None or isinstance(layout, BlockMask) or (layout and query.is_cuda)):
        said = "the model's attention has sinks, not computed with context ranks, in blocks, or by CUDA's segments"
        raise DataError(said, fix="set trainer.attention: dense, without trainer.mesh.context")
    if context is not None:
        query, key, value = (context.by_heads(states) for states in (query, key, value))
    if isinstance(layout, BlockMask):
        out = attend_blocks(query, key, value, layout, scaling)
    elif layout is not None:
        out = _by_segments(query, key, value, layout, scaling, sliding_window, s_aux)
    else:
        if sliding_window is not None and key.shape[2] > sliding_window:
            attention_mask = _windowed(attention_mask, query.shape[2], key.shape[2], sliding_window, query.device)
        if s_aux is not None:
            return _with_sinks(query, key, value, attention_mask, scaling, s_aux).transpose(1, 2), None
        if context is None:
            from transformers.integrations.sdpa_attention import sdpa_attention_forward

            return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling)
        exchanged = scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling, enable_gqa=True)
        out = exchanged.transpose(1, 2)
    return (out if context is None else context.by_tokens(out)), None


def _refuse_unknown(module: Any, told: Mapping[str, Any]) -> None:
    """What this function doesn't compute would be left out without a word: sinks, caps of scores, two directions."""
    strange = sorted(name for name, value in told.items() if value is not None and name not in _ANSWERED)
    if told.get("is_causal", getattr(module, "is_causal", True)) is False:
        strange.append("is_causal: false")
    if strange:
        raise DataError(
            f"the model's attention asks for {', '.join(strange)}, which this trainer doesn't compute",
            fix="use a model of another family: docs/models.md lists those that were compared",
        )


def _windowed(mask: Tensor | None, queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """The mask with the last `window` of the keys that each query sees; they stand in the order of its sequence."""
    if mask is None:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)[None, None]
    at_or_after = mask.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
    return mask & (at_or_after <= window)


def _with_sinks(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, sinks: Tensor
) -> Tensor:
    """Attention [rows, heads, length, width] with one key more, whose score is its head's sink and whose value is 0."""
    if mask is None:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        mask = mask.tril(key.shape[2] - query.shape[2])[None, None]
    rows, heads, length, _ = query.shape
    scores = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, float("-inf"))
    scores = scores.expand(rows, heads, length, -1)
    column = sinks.to(query.dtype)[None, :, None, None].expand(rows, heads, length, 1)
    key, value = (torch.nn.functional.pad(states, (0, 0, 0, 1)) for states in (key, value))
    bias = torch.cat([scores, column], -1)
    return scaled_dot_product_attention(query, key, value, bias, scale=scale, enable_gqa=True)


def _by_segments(
    query: Tensor, key: Tensor, value: Tensor, layout: "SegmentLayout", scale: float | None, window: int | None,
    sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    rows, heads, length, width = query.shape
    q, k, v = (states.transpose(1, 2).reshape(rows * length, -1, states.shape[-1]) for states in (query, key, value))
    if layout.key_index is not None:
        k, v = k.index_select(0, layout.key_index), v.index_select(0, layout.key_index)
    if window is not None and layout.longest_key <= window:
        window = None  # nothing is beyond it
    attend = _on_cuda if query.is_cuda else _one_by_one if sinks is None else partial(_one_by_one, sinks=sinks)
    narrower = width - value.shape[-1]  # kernels want one width
    v = torch.nn.functional.pad(v, (0, narrower)) if narrower else v
    out = attend(q, k, v, layout, scale if scale is not None else width**-0.5, window)
    return out[..., : value.shape[-1]].reshape(rows, length, heads, value.shape[-1])


def _on_cuda(
    query: Tensor, key: Tensor, value: Tensor, layout: "SegmentLayout", scale: float, window: int | None = None
) -> Tensor:
    if window is None and flash.takes(query):
        lengths = layout.longest_query, layout.longest_key
        flashed: tuple[Tensor, Tensor] = flash.flash_attention(
            query, key, value, layout.query_starts, layout.key_starts, *lengths, scale
        )
        return flashed[0]
    more: dict[str, Any] = {"enable_gqa": True} if _SHARES_KEYS else {}
    if not _SHARES_KEYS:
        key, value = _copied(query, key, value)
    out = varlen_attn(
        query,
        key,
        value,
        layout.query_starts,
        layout.key_starts,
        layout.longest_query,
        layout.longest_key,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),  # causal; the default is not
        **more,
    )
    assert isinstance(out, Tensor)  # two only where the log-sum-exp is asked for
    return out


def _copied(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [tokens, heads, width] for each of the queries' heads."""
    group = query.shape[1] // key.shape[1]
    return key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)


def _one_by_one(
    query: Tensor, key: Tensor, value: Tensor, layout: "SegmentLayout", scale: float, window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    key, value = _copied(query, key, value)
    parts = []
    queries, keys = layout.query_starts.tolist(), layout.key_starts.tolist()
    for at in range(len(queries) - 1):
        q = query[queries[at] : queries[at + 1]].transpose(0, 1)[None]
        k, v = (whole[keys[at] : keys[at + 1]].transpose(0, 1)[None] for whole in (key, value))
        more = k.shape[2] - q.shape[2]
        mask = None
        if more or window is not None:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(more)
            mask = mask if window is None else mask.triu(more - window + 1)
        if sinks is None:
            out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
        else:
            out = _with_sinks(q, k, v, None if mask is None else mask[None, None], scale, sinks)
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


BLOCK = 128  # queries and keys of a block; the kernels' own size


def block_mask_of(micro: MicroBatch, device: torch.device) -> BlockMask:
    """The block mask with the same meaning as `micro.attention_mask()`."""
    bundle, branch = micro.bundle_ids.to(device), micro.branch_ids.to(device)
    length = bundle.shape[1]

    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = bundle[row, query] == bundle[row, key]
        mine = (branch[row, key] == 0) | (branch[row, key] == branch[row, query])
        return (query >= key) & same & mine

    some, whole = occupied_blocks(micro)
    parts = (torch.from_numpy(array).to(device) for array in (*_listed(some & ~whole), *_listed(whole)))
    made: Any = BlockMask.from_kv_blocks
    block_mask: BlockMask = made(*parts, BLOCK_SIZE=BLOCK, mask_mod=seen, seq_lengths=(length, length))
    return block_mask


def occupied_blocks(micro: MicroBatch) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """In which blocks some query sees some key, and in which all see all; [rows, blocks, blocks] each.

    Blocks on the diagonal are never said to be whole.
    """
    rows, length = micro.input_ids.shape
    blocks = -(-length // BLOCK)
    layout = layout_of(micro, torch.device("cpu"))
    queries, keys = layout.query_starts.tolist(), layout.key_starts.tolist()
    pairs = np.zeros((rows, blocks, blocks), np.int64)
    for segment, start in enumerate(queries[:-1]):
        row, begin = divmod(start, length)
        size = queries[segment + 1] - start
        own = _in_blocks(begin, begin + size, blocks)
        pairs[row] += np.tril(np.outer(own, own))
        shared = keys[segment + 1] - keys[segment] - size
        if shared and layout.key_index is not None:
            first = int(layout.key_index[keys[segment]]) % length
            pairs[row] += np.outer(own, _in_blocks(first, first + shared, blocks))
    whole = (pairs == BLOCK * BLOCK) & ~np.eye(blocks, dtype=np.bool_)
    return pairs > 0, whole


def attend_blocks(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask, scale: float | None) -> Tensor:
    """[rows, heads, length, width] in, [rows, length, heads, width] out. Compiled once on CUDA, for all lengths."""
    computed: Any = _compiled() if query.is_cuda else flex_attention
    out: Tensor = computed(query, key, value, block_mask=block_mask, scale=scale, enable_gqa=True)
    return out.transpose(1, 2).contiguous()


@cache
def _compiled() -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=True)
    return compiled


def _in_blocks(begin: int, end: int, blocks: int) -> NDArray[np.int64]:
    """Number of the places from `begin` to `end` in each block."""
    starts = np.arange(blocks) * BLOCK
    found: NDArray[np.int64] = np.clip(np.minimum(end, starts + BLOCK) - np.maximum(begin, starts), 0, None)
    return found


def _listed(wanted: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Count of the blocks that each row of blocks wants, and their numbers, those first; as one head, for all heads."""
    order = np.argsort(~wanted, axis=-1, kind="stable").astype(np.int32)
    return wanted.sum(-1, dtype=np.int32)[:, None], order[:, None]


@dataclass(frozen=True)
class SegmentLayout:
    """Segments of a micro-batch's flat tokens, rows · length of them, one after another."""

    query_starts: Tensor  # [segments + 1] int32: where each segment's queries begin; the last is the number of tokens
    key_starts: Tensor  # [segments + 1] int32: where its keys begin
    key_index: Tensor | None  # [keys]: the flat token that each key is of; None where keys are the queries' tokens
    longest_query: int
    longest_key: int


def layout_of(micro: MicroBatch, device: torch.device) -> SegmentLayout:
    """The layout with the same meaning as `micro.attention_mask()`."""
    segments = segments_of(micro)
    begins, tokens = np.array([begin for begin, _ in segments.bounds]), segments.bounds[-1][1]
    keys: list[np.ndarray] = []
    for (begin, end), before in zip(segments.bounds, segments.after, strict=True):
        own = np.arange(begin, end)
        keys.append(own if before is None else np.concatenate([np.arange(*segments.bounds[before]), own]))
    shared = any(before is not None for before in segments.after)
    sizes = np.array([len(one) for one in keys])
    return SegmentLayout(
        query_starts=sent(torch.from_numpy(np.append(begins, tokens).astype(np.int32)), device),
        key_starts=sent(torch.from_numpy(np.append(0, sizes.cumsum()).astype(np.int32)), device),
        key_index=sent(torch.from_numpy(np.concatenate(keys)), device) if shared else None,
        longest_query=max(end - begin for begin, end in segments.bounds),
        longest_key=int(sizes.max()),
    )
