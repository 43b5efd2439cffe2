"""Sharded loading: each rank reads its own slices of the safetensors into the shards that it keeps.

The model comes on the meta device, where nothing is allocated, with its parameters already sharded. A rank's peak is
its shard and one slice. Names in the files are the names that are published: a tensor without one is an error.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from areal.errors import DataError
from areal.file_views import View, stored
from areal.spec.training import Recompute
from areal.weights.safetensors_format import model_files, read_header
from safetensors import safe_open
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from areal_trainer.engine.model import PolicyModel, ValueModel
from areal_trainer.engine.optimizer import local, region

_log = logging.getLogger(__name__)

_FLOATS = ("F64", "F32", "F16", "BF16")
_FIX = "download the model again, or save it with save_pretrained"


def load_weights(model: PolicyModel | ValueModel, path: Path, device: torch.device) -> None:
    """Put the model on `device` with the weights in `path`, in the parameters' own dtype.

    Raises DataError when a tensor is missing, of another shape, or of a dtype that is no plain float.
    """
    model.to_empty(device=device)
    model.lm.tie_weights()  # `to_empty` makes a tensor for each name
    with torch.no_grad():
        _computed_buffers(model.lm)
        _read(model.lm, model.views, path)


def _computed_buffers(lm: nn.Module) -> None:
    """Buffers that no file holds, such as the rotary frequencies, by the model's own initialisation."""
    for parameter in lm.parameters():
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]  # it would draw random weights, too
    stored = set(lm.state_dict())
    named = [
        (module, prefix, name)
        for prefix, module in lm.named_modules()
        for name, _ in module.named_buffers(recurse=False)
        if f"{prefix}.{name}".lstrip(".") not in stored
    ]
    for module, _, name in named:
        buffer = module.get_buffer(name)
        if buffer.is_floating_point():
            buffer.fill_(float("nan"))
    for module in dict.fromkeys(module for module, _, _ in named):
        lm._init_weights(module)  # type: ignore[operator]
    unknown = [f"{prefix}.{name}" for module, prefix, name in named if bool(module.get_buffer(name).isnan().any())]
    if unknown:
        raise DataError(
            f"the model computes {', '.join(unknown)} in a way that this trainer doesn't know", fix="use another model"
        )


def _read(lm: nn.Module, views: Mapping[str, View], path: Path) -> None:
    tensors = stored(lm)
    missing, extra = set(views), []
    for file in _files(path):
        here = {header.name: header for header in read_header(file)[1]}
        extra += [name for name in here if name not in views]
        for name in [name for name in here if name in views]:
            header, shape = here[name], views[name].seen(here[name].shape).size
            if header.shape != shape or header.dtype not in _FLOATS:
                said = f"{name} in {file} is {header.dtype} {list(header.shape)}"
                raise DataError(f"{said}, its configuration says a float {list(shape)}", fix=_FIX)
        with safe_open(file, framework="pt") as opened:  # once a file: each opening keeps a little memory
            for name in [name for name in here if name in views]:
                _copy(opened, name, views[name].seen(here[name].shape), tensors[views[name].tensor])
                missing.discard(name)
    if missing:
        raise DataError(f"{path} lacks {len(missing)} tensors, such as {min(missing)}", fix=_FIX)
    strange = [name for name in extra if not name.endswith(("rotary_emb.inv_freq", "lm_head.weight"))]
    if strange:
        _log.warning("%s holds %d tensors that the model has no place for, such as %s", path, len(strange), strange[0])


def _copy(opened: Any, name: str, view: View, into: Tensor) -> None:
    """Read what this rank's shard has of a file's tensor; it is cast where it is kept."""
    part = local(into)
    if not part.numel():
        return
    if part.dim() == 0:
        part.copy_(opened.get_tensor(name).to(part.device))
        return
    wholes, order = view.within(tuple(into.shape))
    here, there = [], [slice(None)] * len(order)
    for dimension, (wanted, (begin, size)) in enumerate(zip(wholes, region(into), strict=True)):
        first, last = max(wanted.start, begin), min(wanted.stop, begin + size)
        if first >= last:
            return
        here.append(slice(first - begin, last - begin))
        if dimension in order:
            there[order.index(dimension)] = slice(first - wanted.start, last - wanted.start)
    single = [dimension for dimension in range(part.dim()) if dimension not in order]
    value = opened.get_slice(name)[tuple(there)]
    part[tuple(here)].permute(*order, *single).copy_(value.reshape(*value.shape, *[1] * len(single)).to(part.device))


def _files(path: Path) -> list[Path]:
    found = model_files(path)
    if not found:
        raise DataError(f"{path} holds no *.safetensors", fix=_FIX)
    return found


# ---- Activation checkpointing: what a transformer block's forward pass doesn't keep for the backward pass
# `full` keeps a block's input, `offload` keeps it in host memory, `selective` keeps besides the attention's output
# and every second product. Gradients are the same in all.


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
