"""Compiled layers: the numbers of those that are not, from two graphs for all layers of a model."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch._dynamo.config
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from support.trainer_parts import gradients, tiny_model
from torch._dynamo.utils import counters
from torch.nn.functional import cosine_similarity

pytestmark = pytest.mark.component
HEAD = 2  # graphs of the output layer: its forward pass and its backward pass
LAYERS = 4  # were each layer a graph of its own, there would be eight, not two


@pytest.fixture(scope="module")
def deep_model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("deep"), layers=LAYERS)


@pytest.fixture(autouse=True)
def graphs():
    """How many were made so far."""
    torch._dynamo.reset()
    counters.clear()
    return lambda: counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("recompute", [pytest.param("none", marks=pytest.mark.nightly), "selective"])
def test_gradients_are_those_of_layers_that_are_not_compiled(deep_model, ranks, graphs, recompute):
    kept = gradients(deep_model, ranks, recompute=recompute)
    compiled = gradients(deep_model, ranks, recompute=recompute, compile="blocks")
    assert graphs() == 2 + HEAD, "one with gradient, one without, for all layers and both micro-batches"
    for name, tensor in kept.items():
        torch.testing.assert_close(
            compiled[name], tensor, rtol=1e-4, atol=1e-6, msg=lambda said, name=name: name + said
        )


@pytest.mark.nightly
def test_in_bfloat16_they_differ_by_rounding_alone(deep_model, ranks, graphs):
    exact = gradients(deep_model, ranks)
    kept = gradients(deep_model, ranks, precision="bfloat16")
    compiled = gradients(deep_model, ranks, precision="bfloat16", compile="blocks", recompute="full")
    assert graphs() == 2 + HEAD
    assert float((compiled[""] - kept[""]).abs().mean()) <= 0.02
    for name, tensor in exact.items():
        near = [float(cosine_similarity(one[name].flatten(), tensor.flatten(), dim=0)) for one in (kept, compiled)]
        assert near[1] >= min(0.999, near[0] - 0.001), (name, near)


@pytest.mark.nightly
def test_several_models_in_one_process_have_graphs_of_their_own(tmp_path, ranks, graphs, monkeypatch):
    """As policy, critic, reference and teacher, with one row to a micro-batch and with several: above torch's limit."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # graphs alone, no kernels
    with torch._dynamo.config.patch(recompile_limit=4):
        for width in (32, 48):
            (tmp_path / str(width)).mkdir()
            model = tiny_model(tmp_path / str(width), hidden=width)
            for length in (64, 16):
                gradients(model, ranks, length=length, compile="blocks")
    assert graphs() == 8 + HEAD + 1  # another model's passes over logits share them, but for one


def test_what_is_said_token_by_token_is_not_compiled(deep_model, ranks, graphs):
    """Each token has another shape of keys, and a canary is few of them."""
    ids = np.arange(9)
    said = [
        PolicyEngine(deep_model, ModelOptions(compile=mode), ranks).most_likely(ids, 12) for mode in ("none", "blocks")
    ]
    assert np.array_equal(*said)
    assert graphs() == 0
