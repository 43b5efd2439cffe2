"""The check at start: a model that mixes the samples of a row is not trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from areal.errors import DataError
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.self_check import check_packing
from torch import Tensor, nn

IDS = np.random.default_rng(1).integers(0, 24, 96)


class Recurrent(nn.Module):
    """An activation that sees all tokens before, whatever the mask says."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x + x.cumsum(dim=1))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_attention_passes_and_a_layer_with_a_state_does_not(model_path, ranks, precision):
    engine = PolicyEngine(model_path, ModelOptions(precision=precision), ranks)
    check_packing(engine, IDS, 0.002)
    for block in engine._model.blocks:
        block.mlp.act_fn = Recurrent()
        block.mlp.down_proj.weight.data.mul_(20)  # random weights of 0.02 hide nearly everything
    with pytest.raises(DataError, match=r"packed with others otherwise than alone: .* is allowed"):
        check_packing(engine, IDS, 0.002)


def test_weights_that_are_no_numbers_are_named(model_path, ranks):
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    engine._parameters["lm.model.norm.weight"].data.fill_(float("nan"))
    with pytest.raises(DataError, match="no numbers"):
        check_packing(engine, IDS, None)
