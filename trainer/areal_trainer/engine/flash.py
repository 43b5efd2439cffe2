"""FlashAttention-4 (the package flash-attn-4) for packed rows on Hopper, where it is installed.

PyTorch's own variable-length attention is FlashAttention-2, which leaves half of such a card idle: on an H100 316
TFLOP/s of forward and backward pass at 16k tokens, this 589. An operator of its own, so that compiled layers and
selective recompute see it. The package compiles its kernels in seconds, at the first pass of each shape. What it calls
isn't the package's public interface, so it takes the one version that was proved (`make gpu-proof ONLY=attention`).
"""

import logging
from functools import cache
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

VERSION = "4.0.0b36"  # of the package, as constraints.txt pins it
_WIDTHS = (64, 128)  # of a head
_HOPPER = 9  # the compute capability's first number

log = logging.getLogger(__name__)


def takes(query: Tensor) -> bool:
    """Whether it computes attention of such queries, [tokens, heads, width], on this machine."""
    return query.dtype == torch.bfloat16 and query.shape[-1] in _WIDTHS and _installed(query.device.index)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # a compiled layer doesn't trace the search
def _installed(card: int) -> bool:
    return _interface() is not None and torch.cuda.get_device_capability(card)[0] == _HOPPER


@cache
def _interface() -> Any:
    try:
        found = metadata.version("flash-attn-4")
    except metadata.PackageNotFoundError:
        return None
    if found != VERSION:
        log.warning("flash-attn-4 %s isn't used: %s is the version that was proved", found, VERSION)
        return None
    from flash_attn.cute import interface  # type: ignore[import-not-found]

    return interface


@torch.library.custom_op("areal::flash_attention", mutates_args=())
def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, query_starts: Tensor, key_starts: Tensor, longest_query: int,
    longest_key: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Causal attention of segments, aligned at their ends; out and log-sum-exp.

    Args:
        query: [tokens, heads, width]; key, value: [keys, key heads, width]
        query_starts, key_starts: [segments + 1] int32
    """
    out, lse, *_ = _interface()._flash_attn_fwd(
        query, key, value, cu_seqlens_q=query_starts, cu_seqlens_k=key_starts, max_seqlen_q=longest_query,
        max_seqlen_k=longest_key, softmax_scale=scale, causal=True, return_lse=True,
    )  # fmt: skip
    return out, lse


@flash_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32)


@torch.library.custom_op("areal::flash_attention_backward", mutates_args=())
def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, query_starts: Tensor,
    key_starts: Tensor, longest_query: int, longest_key: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    slopes = _interface()._flash_attn_bwd(
        query, key, value, out, grad.contiguous(), lse, softmax_scale=scale, causal=True, cu_seqlens_q=query_starts,
        cu_seqlens_k=key_starts, max_seqlen_q=longest_query, max_seqlen_k=longest_key,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return slopes[0], slopes[1], slopes[2]


@_backward.register_fake
def _(_grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, query_starts, key_starts, *ctx.sizes = inputs
    ctx.save_for_backward(query, key, value, *output, query_starts, key_starts)


def _slopes(ctx: Any, grad: Tensor, _of_lse: Tensor) -> Any:
    return (*_backward(grad, *ctx.saved_tensors, *ctx.sizes), None, None, None, None, None)


flash_attention.register_autograd(_slopes, setup_context=_setup)
