"""Packing of hybrid models: convolutions and recurrences run a segment at a time, so no state leaks into the next.

Attention obeys a mask, a state doesn't. Families look their kernels up by name in their own module at each call, so
those names are replaced there, once, for all hybrids of transformers. A branch continues from the state at the end of
its bundle's prompt, with gradient. Exact and plain: each segment is a call of the family's own function.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from areal_trainer.data.micro_batches import Segments

_CONVOLUTION = "causal_conv1d_fn"
_FUSED = "mamba2_split_conv1d_scan_combined"  # convolution and scan in one, which knows of no prompt
_SCANS = {
    "torch_chunk_gated_delta_rule": ("initial_state", "output_final_state"),
    "chunk_gated_delta_rule": ("initial_state", "output_final_state"),
    "chunk_kimi_delta_attention": ("initial_state", "output_final_state"),
    "mamba2_chunk_scan": ("initial_states", "return_final_states"),
}  # the arguments for a state before, and for the one after
_ELSEWHERE = ("cu_seqlens", "cu_seq_lens_q", "seq_idx")  # what says the segments to kernels


_NOW: ContextVar[Segments | None] = ContextVar("segments", default=None)


def by_segments(lm: Any) -> bool:
    """Let a model's recurrent layers obey the segments that its decoder is given; False where it has none.

    Before anything else wraps the blocks: a repeated forward pass enters them anew, on whichever thread that runs.
    """
    home = sys.modules[type(lm).__module__]
    found = [name for name in (_CONVOLUTION, _FUSED, *_SCANS) if hasattr(home, name)]
    for name in found:
        if not hasattr(getattr(home, name), "whole"):
            setattr(home, name, _chosen(name, getattr(home, name)))
    if found:
        for block in lm.get_decoder().layers:
            block.forward = _within(block)
    return bool(found)


def _within(block: nn.Module) -> Callable[..., Any]:
    whole = block.forward

    @functools.wraps(whole)
    def forward(*args: Any, segments: Segments | None = None, **kwargs: Any) -> Any:
        token = _NOW.set(segments)
        try:
            return whole(*args, **kwargs)
        finally:
            _NOW.reset(token)

    return forward


def _chosen(name: str, whole: Any) -> Callable[..., Any]:
    """The family's function; within segments, what stands for it."""
    apart = functools.partial(_convolution, whole) if name == _CONVOLUTION else functools.partial(_scan, name, whole)

    def called(*args: Any, **kwargs: Any) -> Any:
        now = _NOW.get()
        if now is None:
            return whole(*args, **kwargs)
        return None if name == _FUSED else apart(now, *args, **kwargs)

    called.whole = whole  # type: ignore[attr-defined]
    return called


def _convolution(
    whole: Any, now: Segments, x: Tensor, weight: Tensor, bias: Tensor | None = None,
    activation: str | None = None, **_: Any,
) -> Tensor:  # fmt: skip
    """A causal convolution of [rows, width, length]; a branch's first tokens see the last of its prompt's inputs."""
    rows, width, length = x.shape
    flat, seen, outs = x.transpose(0, 1).reshape(1, width, rows * length), weight.shape[-1] - 1, []
    for (begin, end), before in zip(now.bounds, now.after, strict=True):
        lead = flat[..., :0]
        if before is not None:
            first, last = now.bounds[before]
            lead = flat[..., max(first, last - seen) : last]
        out = whole(torch.cat([lead, flat[..., begin:end]], -1), weight, bias, activation=activation)
        outs.append(out[..., lead.shape[-1] :])
    return torch.cat(outs, -1).reshape(width, rows, length).transpose(0, 1)


def _scan(name: str, whole: Any, now: Segments, *args: Any, **kwargs: Any) -> Any:
    """A recurrence over [rows, length, …]; a branch's begins with its prompt's last state."""
    initial, final = _SCANS[name]
    given = dict(zip(inspect.signature(inspect.unwrap(whole)).parameters, args, strict=False)) | kwargs
    rows, length = next(value for value in given.values() if isinstance(value, Tensor)).shape[:2]
    along = {
        key: value.reshape(1, rows * length, *value.shape[2:])
        for key, value in given.items()
        if isinstance(value, Tensor) and value.dim() >= 3 and value.shape[:2] == (rows, length)
    }
    rest = {key: value for key, value in given.items() if key not in along and key not in _ELSEWHERE}
    outs: list[Tensor] = []
    states: dict[int, Tensor] = {}
    for number, ((begin, end), before) in enumerate(zip(now.bounds, now.after, strict=True)):
        own = {key: value[:, begin:end] for key, value in along.items()}
        rest |= {initial: None if before is None else states[before], final: number in now.after}
        out = whole(**own, **rest)
        if rest[final]:
            states[number] = out[1]
        outs.append(out[0] if isinstance(out, tuple) else out)
    joined = torch.cat(outs, 1).reshape(rows, length, *outs[0].shape[2:])
    return (joined, None) if given.get(final) or initial == "initial_state" else joined
