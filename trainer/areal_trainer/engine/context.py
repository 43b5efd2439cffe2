"""Context parallelism (DeepSpeed-Ulysses, arXiv 2309.14509): the tokens of each packed row split over a group of ranks.

Outside attention a rank computes its run of a row's tokens. Around attention an all-to-all exchanges tokens for heads:
a rank attends with all tokens and its part of the heads, by the same mask or segments as one rank alone. What the model
gives for a predicted token is computed by the rank that has its position, and gathered. Every rank of a group gets the
same micro-batches; a gradient is the sum of what its ranks have.
"""

import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from areal.errors import DataError
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

_HEADS, _TOKENS = 1, 2  # dimensions of [rows, heads, length, width], as attention gets it


@dataclass(frozen=True)
class Context:
    """A group of ranks that share the tokens of their micro-batches."""

    group: Any
    rank: int  # in the group
    size: int

    def run(self, whole: Tensor) -> Tensor:
        """This rank's run of each row, [rows, length / size] of [rows, length]."""
        each = whole.shape[1] // self.size
        return whole[:, self.rank * each : (self.rank + 1) * each]

    def chosen(self, select: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Which of the flat positions `select` of rows of `length` tokens are this rank's, and where in its run.

        On the host: how many there are is asked.
        """
        each = length // self.size
        row, place = select // length, select % length
        mine = torch.nonzero(place // each == self.rank).squeeze(1)
        return mine, (row * each + place % each).index_select(0, mine)

    def gather(self, values: Tensor, mine: Tensor, count: int) -> Tensor:
        """All ranks' values, [count], of this rank's at `mine`. Its gradient stays this rank's."""
        gathered: Tensor = _Gather.apply(values, mine, count, self)
        return gathered

    def by_heads(self, states: Tensor) -> Tensor:
        """[rows, heads, length / size, width] to [rows, heads / size, length, width]. A collective.

        Fewer heads than ranks are repeated: neighbours share one.
        """
        states = states.repeat_interleave(max(1, self.size // states.shape[_HEADS]), _HEADS)
        exchanged: Tensor = _HeadExchange.apply(states, _HEADS, _TOKENS, self)
        return exchanged

    def by_tokens(self, states: Tensor) -> Tensor:
        """[rows, length, heads / size, width], as attention gives it, to [rows, length / size, heads, width]."""
        exchanged: Tensor = _HeadExchange.apply(states, 1, 2, self)
        return exchanged


class _HeadExchange(torch.autograd.Function):
    """Gives each rank its part of dimension `split` and puts what came together along `join`."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, split: int, join: int, context: Context) -> Tensor:
        ctx.back = join, split, context
        return _exchange(states, split, join, context)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _exchange(grads[0], *ctx.back), None, None, None


def _exchange(states: Tensor, split: int, join: int, context: Context) -> Tensor:
    sent = torch.stack(states.chunk(context.size, split))
    came = torch.empty_like(sent)
    dist.all_to_all_single(came, sent, group=context.group)
    return torch.cat(came.unbind(), join)


class _Gather(torch.autograd.Function):
    """The loss is the same on every rank, so each takes the gradient of its own values and nobody adds them up."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mine: Tensor, count: int, context: Context) -> Tensor:
        ctx.save_for_backward(mine)
        whole = values.new_zeros(count).index_copy_(0, mine, values)
        dist.all_reduce(whole, group=context.group)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (mine,) = ctx.saved_tensors
        return grads[0].index_select(0, mine), None, None, None


def refuse_heads(config: Any, parts: int, tensor: int) -> None:
    """Raise DataError when a model's heads, split over `tensor` ranks, can't be exchanged among `parts`."""
    heads = int(config.num_attention_heads) // tensor
    shared = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads) // tensor
    if heads % parts or (shared % parts and parts % shared):
        raise DataError(
            f"{heads} heads and {shared} of keys and values of a rank don't split into {parts} equal parts",
            fix="set trainer.mesh.context to a divisor of them",
        )


# ---- Tensor parallelism: each block's linear layers split over the ranks of a tensor group, by the model's own plan
# By transformers' `base_model_tp_plan`: what lies between a `colwise` and its `rowwise` layer computes on a part, so
# each of its weights must be in the plan, or its gradient would be a part of the true one. Embedding and output layer
# are not split.


_TENSOR_HEADS = 2  # dimension of [rows, length, heads, width]
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
        return SequenceParallel(sequence_dim=_TENSOR_HEADS, use_local_output=True)
    raise DataError(f"{where} is a {type(module).__name__} to be split as {wanted}, which this trainer can't", fix=_FIX)
