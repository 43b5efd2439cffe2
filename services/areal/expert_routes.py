"""Routing replay: the experts that a token's routers chose, recorded where it is sampled, forced where it is trained.

Every router ends in one `topk` over its experts' scores. Within a `RouterMode` that call's choice is noted, or answered
with the engine's; its values are gathered from the scores there are, so a router keeps its gradient. No code for any
family. What a token's routes look like, `areal.values.routes` says.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from areal.errors import DataError
from areal.spec.model_families import CHOSEN_COUNTS, EXPERT_COUNTS, MASKED_GROUPS
from areal.values.routes import MISSING, RouteShape

_OFF = "generate with the model that is trained, or set trainer.routingReplay: false"
_ROUTERS = (torch.topk, torch.Tensor.topk)


def rows_of(shape: RouteShape, chosen: Sequence[Tensor]) -> NDArray[np.uint8]:
    """What the routers chose, int64 [tokens, chosen] a layer with one, as rows of bytes [tokens, row].

    Raises DataError where another number of routers chose.
    """
    if len(chosen) != len(shape.routed):
        raise DataError(f"{len(chosen)} routers chose in a model that has {len(shape.routed)}", fix=_OFF)
    return shape.rows(torch.stack([picked.cpu() for picked in chosen], dim=1).numpy())


def ids_of(shape: RouteShape, rows: Tensor) -> Tensor:
    """Rows of bytes on the host, uint8 [tokens, row], as int16 [tokens, layers, chosen]; −1 where unknown.

    Raises DataError for rows of another model.
    """
    if rows.shape[-1] != shape.row_bytes:
        raise DataError(f"a token's routes have {rows.shape[-1]} bytes, not those of this model", fix=_OFF)
    ids = rows.contiguous().view(torch.int16) if shape.wide else rows.to(torch.int16)
    ids = ids if shape.wide else ids.masked_fill(ids == MISSING, -1)
    if len(ids) and int(ids.max()) >= shape.experts:
        raise DataError(f"a token went to expert {int(ids.max())} of {shape.experts}", fix=_OFF)
    return ids.view(-1, shape.layers, shape.chosen)


def route_shape(lm: Any) -> RouteShape | None:
    """Of a Hugging Face model; None where no layer has experts, or their choice can't be forced."""
    config, blocks = lm.config.get_text_config(), lm.get_decoder().layers
    if getattr(config, "topk_method", None) == MASKED_GROUPS:
        return None  # experts beyond the groups that a router chooses have no score to be gathered
    routed = tuple(number for number, block in enumerate(blocks) if experts_of(block))
    experts, chosen = (
        next((value for name in names if isinstance(value := getattr(config, name, None), int)), 0)
        for names in (EXPERT_COUNTS, CHOSEN_COUNTS)
    )
    return RouteShape(len(blocks), routed, experts, chosen) if routed and experts and chosen else None


def experts_of(block: nn.Module) -> list[nn.Module]:
    """The module of a block that holds its experts' stacked matrices, if it has one."""
    named = [module for name, module in block.named_modules() if name.rpartition(".")[2] == "experts"]
    return [module for module in named if next(module.parameters(recurse=False), None) is not None]


class RouterMode(TorchFunctionMode):
    """Notes in `chosen` what each router chooses; with `forced`, int64 [tokens, chosen], lets it choose that.

    A token whose forced row is −1 chooses by itself. `logits` are of the last linear layer, the router.
    """

    def __init__(self, shape: RouteShape, forced: Tensor | None = None) -> None:
        super().__init__()
        self.chosen: list[Tensor] = []
        self.logits = torch.empty(0)
        self._shape = shape
        self._forced = forced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _ROUTERS:
            told = func(*args, **kwargs)
            self.logits = told if func is torch.nn.functional.linear and not self.chosen else self.logits
            return told
        scores, k = args[0], kwargs.get("k", args[1] if len(args) > 1 else None)
        # groups are chosen by topk, too: of three dimensions, or over fewer than all experts
        if scores.dim() != 2 or scores.shape[-1] != self._shape.experts or k != self._shape.chosen:
            return func(*args, **kwargs)
        if self._forced is None:
            values, ids = func(*args, **kwargs)
        else:
            own = func(scores.detach(), *args[1:], **kwargs)[1]
            ids = torch.where(self._forced[:, :1] < 0, own, self._forced)
            values = scores.gather(-1, ids)
        self.chosen.append(ids.detach())
        return torch.return_types.topk((values, ids))
