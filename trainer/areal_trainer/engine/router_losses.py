"""Router losses of mixtures of experts: load balancing (Switch Transformers, arXiv 2101.03961) and z-loss (2202.08906).

Balance is load_balancing_loss_func of transformers: E·Σ_e f_e·P_e over all layers together, f_e an expert's part of
the routes that were used (k in all), P_e the mean of its softmax probability; z is the mean of logsumexp(logits)². Both
are of a mini-batch's input tokens, a shared prompt's once a sequence, whatever the packing, micro-batches and ranks: f
is counted before the first backward pass, of replayed routes, else by a forward pass without gradient.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from areal.values.routes import RouteShape
from torch import Tensor

from areal_trainer.data.micro_batches import MicroBatch
from areal_trainer.engine.group import RankGroup


class RouterLosses:
    """Of one model. `begin` and `figures` are collectives."""

    def __init__(self, shape: RouteShape | None, weights: tuple[float, float], ranks: RankGroup) -> None:
        self._shape, self._ranks = shape if any(weights) else None, ranks
        self._slopes = torch.tensor(weights, device=ranks.device) * ranks.world_size  # FSDP takes the mean over ranks
        self._sums = torch.zeros(4, dtype=torch.float64, device=ranks.device)  # this rank's parts of figures; updates
        self._counts = self._sums.new_zeros(1 + (shape.experts if shape else 0))  # of routes to each; tokens · layers
        self._share: Tensor | None = None  # E·f_e and 1, over tokens · layers; None while routes are counted

    @torch.no_grad()
    def begin(self, micros: Sequence[MicroBatch], routes: Callable[..., Any] | None, ask: Callable[..., Any]) -> None:
        """Count a mini-batch's load, of its `routes` [tokens, layers, chosen] or, without, by what `ask` passes."""
        if (shape := self._shape) is None:
            return
        self._share, self._counts = None, torch.zeros_like(self._counts)
        for micro in micros:
            whole = micro.padded(self._ranks.context.size if self._ranks.context else 1)
            if routes is None:
                ask(micro)
            elif (count := self.of(whole)) and (ids := routes(whole)) is not None:
                for layer in shape.routed:
                    count(None, None, ids[:, layer])
        self._ranks.add_all(self._counts)
        load = self._counts[:-1]
        self._sums[2:] += torch.stack([load.max() / load.mean(), load.new_ones(())]) / self._ranks.world_size
        share = torch.cat([load / load.sum() * shape.experts * shape.chosen, load.new_ones(1)])
        self._share = torch.nan_to_num(share / self._counts[-1], posinf=0.0).float()  # of no token there is none

    def of(self, micro: MicroBatch) -> Callable[..., Any] | None:
        """A block's (output, router logits, experts) → output, over the micro-batch's tokens; None without losses."""
        if self._shape is None or (self._share is not None and not torch.is_grad_enabled()):
            return None
        context, tensor = self._ranks.context, self._ranks.world_size // self._ranks.averaged
        copies = (context.run(micro.copies) if context else micro.copies).to(self._ranks.device).flatten() / tensor

        def through(told: Any, logits: Any, ids: Tensor) -> Any:
            if (share := self._share) is None:
                known = (copies[:, None] * (ids >= 0)).double()
                self._counts.index_add_(0, ids.clamp(min=0).flatten().long(), known.flatten())
                self._counts[-1] += copies.sum()
                return told
            balance = logits.float().softmax(-1) @ share[:-1]
            values = torch.stack([balance, logits.float().logsumexp(-1).square() * share[-1]]) @ copies
            noted = values.detach()  # in the backward pass, which a forward pass that is computed again has none of
            values.register_hook(lambda _: (self._slopes, self._sums[:2].add_(noted))[0])  # type: ignore[no-untyped-call]
            return told + 0 * values.sum()  # for the block's backward pass to begin theirs, with the slopes

        return through

    def figures(self) -> dict[str, float]:
        """Means over the mini-batches since the last time; empty without any."""
        if self._shape is None:
            return {}
        self._ranks.add_all(self._sums)
        told = (self._sums[:3] / self._sums[3]).tolist() if self._sums[3] else []
        self._sums.zero_()
        return dict(zip(("router_aux_loss", "router_z_loss", "router_load_max"), told, strict=False))
