"""Tensor parallelism: each block's linear layers split over the ranks of a tensor group, by the model's own plan.

The plan is transformers' `base_model_tp_plan`: `colwise` layers make a part of the outputs (heads, or the MLP's inner
width), `rowwise` layers take that part and add up over the group. What lies between the two computes on a part, so each
of its weights must be in the plan, or its gradient would be a part of the true one. Models without such a plan are
refused in words. Embedding and output layer are not split: they are sharded with everything else.
"""

import re
from typing import Any

from areal.errors import DataError
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

_HEADS = 2  # dimension of [rows, length, heads, width]
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_FIX = "set trainer.mesh.tensor to 1, or use a dense model of the Llama, Mistral, Qwen2 or Qwen3 families"


def split(lm: Any, mesh: DeviceMesh) -> None:
    """Split a model on the meta device over `mesh`, of one dimension. Raises DataError when it can't be split so."""
    kind, parts = lm.config.model_type, mesh.size()
    plan = getattr(lm.config, "base_model_tp_plan", None)
    if not plan:
        raise DataError(f"models of type {kind} have no plan for tensor parallelism", fix=_FIX)
    for size in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        whole = int(getattr(lm.config, size, None) or 0)
        if whole % parts:
            raise DataError(
                f"{size} is {whole}, which doesn't split into {parts} equal parts",
                fix="set trainer.mesh.tensor to a divisor of it",
            )
    decoder = lm.get_decoder()
    styles: dict[str, ParallelStyle] = {}
    for name, module in decoder.named_modules():
        if not name.startswith("layers."):
            continue  # tied models have a plan for the embedding
        if (wanted := plan.get(_NUMBER.sub("*", name))) is not None:
            styles[name] = _style(f"{kind}'s {name}", module, wanted)
    inside = {name.rpartition(".")[0] + "." for name in styles}
    for name, _ in decoder.named_parameters():
        module = name.rpartition(".")[0]
        if module not in styles and any(name.startswith(part) for part in inside):
            raise DataError(f"the plan of {kind} for tensor parallelism leaves out {name}", fix=_FIX)
    parallelize_module(decoder, mesh, styles)


def _style(where: str, module: nn.Module, wanted: str) -> ParallelStyle:
    if wanted == "colwise" and isinstance(module, nn.Linear):
        return ColwiseParallel()
    if wanted == "rowwise" and isinstance(module, nn.Linear):
        return RowwiseParallel()
    if wanted == "replicated_with_grad_allreduce":  # a norm of each head
        return SequenceParallel(sequence_dim=_HEADS, use_local_output=True)
    raise DataError(f"{where} is a {type(module).__name__} to be split as {wanted}, which this trainer can't", fix=_FIX)
