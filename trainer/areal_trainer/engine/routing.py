"""Routing replay in the trainer: a token's routers choose the experts that they chose in the engine.

The decoder hands each block the routes of the pass's tokens, so that a repeated forward pass has them, too, on
whichever thread it runs.
"""

import functools
from collections.abc import Callable
from typing import Any

from areal.errors import BugError
from areal.expert_routes import RouterMode, route_shape
from areal.values.routes import RouteShape
from torch import Tensor, nn


def by_routes(lm: Any) -> RouteShape | None:
    """Let a model's routers obey the routes that its decoder is given; None where it has no experts.

    Before anything else wraps the blocks.
    """
    shape = route_shape(lm)
    if shape is not None:
        for number, block in enumerate(lm.get_decoder().layers):
            block.forward = _routed(block, number, shape)
    return shape


def _routed(block: nn.Module, number: int, shape: RouteShape) -> Callable[..., Any]:
    whole = block.forward

    @functools.wraps(whole)
    def forward(*args: Any, routes: Tensor | None = None, **kwargs: Any) -> Any:
        if routes is None or number not in shape.routed:
            return whole(*args, **kwargs)
        with RouterMode(shape, routes[:, number].long()) as mode:
            told = whole(*args, **kwargs)
        if len(mode.chosen) != 1:
            raise BugError(f"layer {number} asked its router {len(mode.chosen)} times: its routes weren't replayed")
        return told

    return forward
