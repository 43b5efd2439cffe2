"""AdamW on each rank's own shards.

The update is elementwise, so a rank steps its local tensors directly: no DTensor dispatch a parameter. The gradient
norm is the only thing that ranks must agree on. State leaves and enters as DTensors, so that a checkpoint of one world
size loads in another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from areal_trainer.engine.group import Ranks


@dataclass(frozen=True)
class AdamWOptions:
    """Hyperparameters of AdamW and of gradient clipping."""

    betas: tuple[float, float] = (0.9, 0.99)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    grad_clip: float = 1.0


class ShardedAdamW:
    """Steps the shards of the given parameters, by name."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], options: AdamWOptions, ranks: Ranks) -> None:
        self._ranks = ranks
        self._options = options
        self._shards = {name: p for name, p in parameters.items() if p.requires_grad}
        self._local = {name: local(p.detach()) for name, p in self._shards.items()}
        held = {name: tensor for name, tensor in self._local.items() if tensor.numel()}  # a rank may own none of one
        decayed = [tensor for name, tensor in held.items() if _decays(name, self._shards[name])]
        plain = [tensor for name, tensor in held.items() if not _decays(name, self._shards[name])]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=0.0,
            betas=options.betas,
            eps=options.epsilon,
            weight_decay=options.weight_decay,
            fused=True,
        )

    def step(self, learning_rate: float, loss: Tensor | None = None) -> float:
        """Clip, update, drop the gradients; returns the norm before clipping.

        A norm or a rank's `loss` that is not finite changes nothing, and the norm returned is not finite on any rank.
        """
        gradients: list[Tensor] = []
        copies: list[int] = []  # ranks that have the same gradient
        for name, shard in self._shards.items():
            tensor = self._local[name]
            gradient = shard.grad
            shard.grad = None
            if tensor.numel():
                tensor.grad = torch.zeros_like(tensor) if gradient is None else local(gradient)
                gradients.append(tensor.grad)
                copies.append(self._ranks.world_size // _parts(shard))
        norm = self._norm(gradients, copies, loss)
        if torch.isfinite(norm):
            scale = self._options.grad_clip / (norm + 1e-6)
            if scale < 1.0:
                torch._foreach_mul_(gradients, float(scale))
            for entry in self._adam.param_groups:
                entry["lr"] = learning_rate
            self._adam.step()
        self._adam.zero_grad(set_to_none=True)
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
            held = self._adam.state[tensor] if tensor.numel() else {}
            for moment in ("exp_avg", "exp_avg_sq"):
                value = held.get(moment)
                if value is None:
                    value = torch.zeros_like(tensor)
                    if tensor.numel():
                        held[moment] = value
                state[f"{moment}.{name}"] = like(shard, value)
            if tensor.numel() and "step" not in held:
                held["step"] = torch.zeros((), dtype=torch.float32, device=tensor.device)
        return state

    @property
    def updates(self) -> int:
        """Updates made, which bias correction depends on."""
        for held in self._adam.state.values():
            return int(held["step"].item()) if "step" in held else 0
        return 0

    def set_updates(self, updates: int) -> None:
        """After `state()` was filled from a checkpoint: how many updates it holds."""
        for held in self._adam.state.values():
            held["step"].fill_(float(updates))


def _decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: to matrices, not to norms, biases and embeddings."""
    return parameter.dim() >= 2 and "embed" not in name


def local(tensor: Tensor) -> Tensor:
    """This rank's part, sharing memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def like(parameter: Tensor, value: Tensor) -> Tensor:
    """`value` as a shard laid out like `parameter`."""
    if not isinstance(parameter, DTensor):
        return value
    return DTensor(value, parameter._spec, requires_grad=False)  # from_local would move it to the mesh's device


def _parts(parameter: Tensor) -> int:
    """How many ranks a parameter's parts lie on, each a different one."""
    if not isinstance(parameter, DTensor):
        return 1
    mesh = parameter.device_mesh
    return math.prod(mesh.size(at) for at, place in enumerate(parameter.placements) if not place.is_replicate())
