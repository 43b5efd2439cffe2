"""Activation memory: bytes that autograd keeps a token of a micro-batch, by layer, in closed form.

Counted from what the modules of Hugging Face's Llama, Qwen2 and Qwen3 save for backward (RMSNorm in float32, SwiGLU,
scaled dot product attention); a test compares with saved-tensor hooks. Pure.
"""

from typing import Literal

from areal.admit.memory.shape import ModelShape

Recompute = Literal["none", "selective", "full", "offload"]
Attention = Literal["dense", "varlen", "flex"]

_FLOAT = 4


def kept_by_a_block(shape: ModelShape, element: int, attention: Attention) -> int:
    """Bytes a token that one layer keeps.

    Args:
        element: bytes of a number in the forward pass: 2 for bfloat16, 4 for float32.
        attention: `dense` expands keys and values to all heads, because a mask rules out grouped heads.
    """
    hidden, queries, keys = shape.hidden, shape.queries, shape.keys
    # each norm keeps its input in float32, the reciprocal of its root mean square, what it normalised, and its output
    norms = 2 * (_FLOAT * hidden + _FLOAT + 2 * element * hidden)
    expanded = queries if attention == "dense" else keys
    heads = element * (2 * queries + 2 * expanded) + _FLOAT * shape.heads  # q, k, v, output; log-sum-exp a head
    if shape.head_norms:
        heads += (_FLOAT + element) * (queries + keys) + _FLOAT * (shape.heads + shape.kv_heads)
    return norms + heads + kept_by_the_inner(shape, element)


def kept_by_the_inner(shape: ModelShape, element: int) -> int:
    """Bytes a token that a layer's MLP keeps, or the experts that the token goes to, with their router."""
    if not shape.experts:
        return 4 * element * shape.intermediate  # SwiGLU: gate, its SiLU, up, their product
    router = (_FLOAT + element) * shape.experts + 4 * 8 * shape.chosen  # logits, probabilities; numbers and their order
    return element * shape.chosen * (2 * shape.hidden + 4 * shape.intermediate) + router  # a copy in, a copy out


def kept_outside(shape: ModelShape, element: int) -> int:
    """Bytes a token kept once: the last norm, the rotary angles, the token's id."""
    return _FLOAT * shape.hidden + _FLOAT + element * shape.hidden + 2 * element * shape.head_width + 8


def bytes_a_token(shape: ModelShape, element: int, attention: Attention, recompute: Recompute) -> int:
    """Bytes a token at the peak of a backward pass, without masks: what each layer keeps, and one layer made again."""
    block = kept_by_a_block(shape, element, attention)
    if recompute == "none":
        return shape.layers * block + kept_outside(shape, element)
    return shape.layers * kept_by_recompute(shape, element, recompute) + block + kept_outside(shape, element)


def kept_by_recompute(shape: ModelShape, element: int, recompute: Recompute) -> int:
    """Bytes a token that one layer keeps until its backward pass, when it is computed again there."""
    if recompute == "offload":
        return 0  # its input is in the host's memory
    kept = element * shape.hidden
    if recompute == "selective" and not shape.experts:
        # the products of keys, output and up, every second of seven; attention's output
        products = shape.keys + shape.hidden + shape.intermediate
        kept += element * (products + shape.queries) + _FLOAT * shape.heads
    return kept


def mask_bytes(shape: ModelShape, element: int, tokens: int, attention: Attention, recompute: Recompute) -> int:
    """Bytes of the dense mask, which each layer converts and keeps again; none without it."""
    if attention != "dense":
        return 0
    return (shape.layers if recompute == "none" else 1) * element * tokens * tokens
