"""AdamW on each rank's own shards.

The update is elementwise, so a rank steps its local tensors directly: no DTensor dispatch a parameter. The gradient
norm is the only thing that ranks must agree on. State leaves and enters as DTensors, so that a checkpoint of one world
size loads in another.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from areal_trainer.engine.adam_states import KINDS, MOMENTS, AdamWOptions
from areal_trainer.engine.group import RankGroup


class ShardedAdamW:
    """Steps the shards of the given parameters, by name."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], options: AdamWOptions, ranks: RankGroup) -> None:
        self._ranks = ranks
        self._options = options
        self._shards = {name: p for name, p in parameters.items() if p.requires_grad}
        self._local = {name: local(p.detach()) for name, p in self._shards.items()}
        held = {name: tensor for name, tensor in self._local.items() if tensor.numel()}  # a rank may own none of one
        decays = {name: _decays(name, self._shards[name]) for name in held}
        self._adam = KINDS[options.state](held, decays, options)

    def forget(self) -> None:
        """Drop the gradients."""
        for shard in self._shards.values():
            shard.grad = None

    def step(self, learning_rate: float, loss: Tensor | None = None, *, divisor: int = 1) -> float:
        """Divide by `divisor`, clip, update, drop the gradients; returns the norm before clipping.

        A norm or a rank's `loss` that is not finite changes nothing, and the norm returned is not finite on any rank.
        """
        gradients: dict[str, Tensor] = {}
        copies: list[int] = []  # ranks that have the same gradient
        for name, shard in self._shards.items():
            tensor = self._local[name]
            gradient = shard.grad
            if tensor.numel():
                gradients[name] = torch.zeros_like(tensor) if gradient is None else local(gradient).contiguous()
                copies.append(self._ranks.world_size // _parts(shard))
        self.forget()
        if divisor > 1:
            torch._foreach_div_(list(gradients.values()), float(divisor))
        norm = self._norm(list(gradients.values()), copies, loss)
        if torch.isfinite(norm):
            scale = self._options.grad_clip / (norm + 1e-6)
            if scale < 1.0:
                torch._foreach_mul_(list(gradients.values()), float(scale))
            with torch.no_grad():
                self._adam.step(gradients, learning_rate)
        return float(norm)

    def _norm(self, gradients: list[Tensor], copies: list[int], loss: Tensor | None) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self._ranks.device)
        if gradients:
            squares = torch.stack(torch._foreach_norm(gradients)).double().square()
            total = (squares / torch.tensor(copies, device=squares.device)).sum()
        if loss is not None:
            total = total + loss.double() * 0.0  # 0, or not a number
        self._ranks.add_all(total)
        return total.sqrt()

    def state(self) -> dict[str, Tensor]:
        """Moments by `<moment>.<parameter>`, as DTensors laid out like their parameters; made when there are none."""
        state: dict[str, Tensor] = {}
        for name, shard in self._shards.items():
            tensor = self._local[name]
            held = self._adam.moments(name) if tensor.numel() else dict.fromkeys(MOMENTS, self._adam.empty(tensor))
            state |= {f"{moment}.{name}": like(shard, held[moment]) for moment in MOMENTS}
        return state

    @property
    def updates(self) -> int:
        """Updates made, which bias correction depends on."""
        return self._adam.updates

    def set_updates(self, updates: int) -> None:
        """After `state()` was filled from a checkpoint: how many updates it holds."""
        self._adam.restored(updates)


def _decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: to matrices, not to norms, biases and embeddings."""
    return parameter.dim() >= 2 and "embed" not in name


def local(tensor: Tensor) -> Tensor:
    """This rank's part, sharing memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def region(tensor: Tensor) -> list[tuple[int, int]]:
    """Where this rank's part begins in the whole tensor, and its size, a dimension each."""
    offset = (0,) * tensor.dim()
    if isinstance(tensor, DTensor):
        _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return list(zip(offset, local(tensor).shape, strict=True))


def like(parameter: Tensor, value: Tensor) -> Tensor:
    """`value` as a shard laid out like `parameter`."""
    if not isinstance(parameter, DTensor):
        return value
    return DTensor(value, parameter._spec, requires_grad=False)  # from_local would move it to the mesh's device


def _parts(parameter: Tensor) -> int:
    """Number of ranks that hold the parts of a parameter, each a different one."""
    if not isinstance(parameter, DTensor):
        return 1
    mesh = parameter.device_mesh
    return math.prod(mesh.size(at) for at, place in enumerate(parameter.placements) if not place.is_replicate())


# ---- Learning rate as a function of the step. Pure, so a restart needs no state of it


@dataclass(frozen=True)
class RateSchedule:
    """Warm-up from 1/warmup_steps of `peak`, then decay to `min_ratio`·peak at the last step."""

    peak: float
    warmup_steps: int = 5
    kind: Literal["linear", "constant", "cosine"] = "linear"
    min_ratio: float = 0.1

    def at(self, step: int, max_steps: int) -> float:
        """The rate of the 0-based `step`. Steps beyond the end keep the last rate."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.kind == "constant":
            return self.peak
        span = max(1, max_steps - 1 - self.warmup_steps)
        progress = min(1.0, (step - self.warmup_steps) / span)
        shape = 1.0 - progress if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.peak * (self.min_ratio + (1.0 - self.min_ratio) * shape)
