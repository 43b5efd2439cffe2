"""The embedded engine with a fault in its way of taking weights: the mutants of the weights' mutation suite.

A program: the engine's own command line; the mutation is read from the file that AREAL_TEST_MUTATION names, at each
load, so that one process serves all mutants.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from areal.engine import embedded, main, scheduler
from areal.engine.adapter import NONE
from areal.engine.commands import Load
from areal.engine.weights import Weights

VARIABLE = "AREAL_TEST_MUTATION"
LABEL_KEPT = "still serves version 0"
DROPPED = "update dropped"


def _layer(weights: Weights, index: int, **fields: object) -> Weights:
    layers = list(weights.layers)
    layers[index] = replace(layers[index], **fields)
    return replace(weights, layers=tuple(layers))


def _uninitialised(weights: Weights) -> Weights:
    shape = weights.layers[1].gate_up.shape
    garbage = torch.randn(shape, generator=torch.Generator().manual_seed(9)).to(weights.embedding.dtype)
    return _layer(weights, 1, gate_up=garbage)


def _old_bucket(old: Weights, new: Weights) -> Weights:
    return replace(_layer(new, 1, down=old.layers[1].down), final_norm=old.final_norm)


def _no_adapter(old: Weights, new: Weights) -> Weights:
    return replace(new, layers=tuple(replace(layer, adapter=NONE) for layer in new.layers))


def _old_adapter(old: Weights, new: Weights) -> Weights:
    """What is loaded, with one layer's adapter of the version before."""
    return _layer(new, 0, adapter=old.layers[0].adapter)


MUTATIONS: dict[str, Callable[[Weights, Weights], Weights]] = {
    DROPPED: lambda old, new: old,
    "last bucket dropped": _old_bucket,
    "two layers swapped": lambda old, new: replace(new, layers=new.layers[::-1]),
    "one tensor zeroed": lambda old, new: _layer(new, 0, out=torch.zeros_like(new.layers[0].out)),
    "one tensor transposed": lambda old, new: _layer(new, 0, out=new.layers[0].out.T.contiguous()),
    "uninitialised memory": lambda old, new: _uninitialised(new),
    "scale x1.01": lambda old, new: replace(new, final_norm=new.final_norm * 1.01),
    "embeddings untied": lambda old, new: replace(new, head=old.head),
    LABEL_KEPT: lambda old, new: new,
}
OF_ADAPTERS: dict[str, Callable[[Weights, Weights], Weights]] = {
    "adapter missing": _no_adapter,
    "adapter of an older version": _old_adapter,
}


def mutation() -> str:
    file = Path(os.environ[VARIABLE])
    return file.read_text() if file.exists() else ""


class _MutantScheduler(scheduler.DecodeScheduler):
    """Takes weights as the mutation has it, and says that all went well."""

    def _request_load(self, command: Load) -> None:
        name = mutation()
        if name:
            weights = {**MUTATIONS, **OF_ADAPTERS}[name](self.weights, command.weights)
            version = self._version if name == LABEL_KEPT else command.version
            command = replace(command, weights=weights, version=version)
        super()._request_load(command)


if __name__ == "__main__":
    embedded.DecodeScheduler = _MutantScheduler  # type: ignore[misc]
    raise SystemExit(main.main())
