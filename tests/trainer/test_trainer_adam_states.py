"""AdamW's moments in float32, bfloat16 and host memory: the same update, to rounding."""

from __future__ import annotations

import pytest
import torch
from areal_trainer.engine import adam_states
from areal_trainer.engine.adam_states import KINDS, AdamWOptions, rounded_stochastically

SHAPES = {"a": (7, 5), "b": (3,), "c": (40,), "d": (11, 2)}
DECAYS = {"a": True, "b": False, "c": False, "d": True}


def drawn(seed):
    noise = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=noise) for name, shape in SHAPES.items()}


def updated(kind, steps=6, betas=(0.9, 0.95)):
    """Weights and moments after some steps."""
    weights = drawn(0)
    state = KINDS[kind](weights, DECAYS, AdamWOptions(betas=betas, weight_decay=0.1, state=kind))
    for step in range(steps):
        state.step(drawn(1 + step), 1e-2)
    assert state.updates == steps
    return weights, {name: state.moments(name) for name in SHAPES}


@pytest.mark.parametrize("piece", [1 << 24, 16])
def test_host_memory_changes_no_bit(piece, monkeypatch):
    monkeypatch.setattr(adam_states, "PIECE", piece)
    (here, moments), (there, moved) = updated("float32"), updated("cpu")
    for name in SHAPES:
        assert torch.equal(here[name], there[name])
        assert all(torch.equal(moments[name][moment], moved[name][moment]) for moment in adam_states.MOMENTS)


def test_an_update_is_adamw_s():
    weights = {name: torch.nn.Parameter(tensor) for name, tensor in drawn(0).items()}
    groups = [
        {"params": [weights[name] for name in SHAPES if DECAYS[name] == decays], "weight_decay": 0.1 * decays}
        for decays in (True, False)
    ]
    adam = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), fused=True)
    for step in range(6):
        for name, gradient in drawn(1 + step).items():
            weights[name].grad = gradient
        adam.step()
    ours, _ = updated("float32")
    assert all(torch.equal(ours[name], weights[name]) for name in SHAPES)


@pytest.mark.parametrize("piece", [1 << 24, 16])
def test_moments_in_bfloat16_are_near_those_in_float32(piece, monkeypatch):
    monkeypatch.setattr(adam_states, "PIECE", piece)
    (exact, moments), (rough, rounded) = updated("float32", 20), updated("bfloat16", 20)
    for name in SHAPES:
        assert rounded[name]["exp_avg_sq"].dtype == torch.bfloat16
        assert rough[name].dtype == torch.float32
        assert torch.allclose(rounded[name]["exp_avg_sq"].float(), moments[name]["exp_avg_sq"], rtol=0.03)
        assert (rough[name] - exact[name]).abs().max() < 0.05 * 20 * 1e-2, "20 steps of 0.01"
    again, _ = updated("bfloat16", 20)
    assert all(torch.equal(rough[name], again[name]) for name in SHAPES), "the noise follows from name and number"


def test_a_second_moment_in_bfloat16_follows_gradients_that_grow_a_little():
    weights = {"w": torch.zeros(512)}
    state = KINDS["bfloat16"](weights, {"w": False}, AdamWOptions(betas=(0.9, 0.99), state="bfloat16"))
    state.moments("w")["exp_avg_sq"].fill_(1.0)
    state.restored(1000)
    for _ in range(200):
        state.step({"w": torch.full((512,), 1.05)}, 0.0)
    # 1 + 0.1025 (1 - 0.99^200): each step is a tenth of a percent, less than half of bfloat16's
    assert float(state.moments("w")["exp_avg_sq"].float().mean()) == pytest.approx(1.0888, abs=0.003)


def test_rounding_is_to_a_neighbour_and_right_in_the_mean():
    values = torch.tensor([1.0, 1.001, -3.3, 1e-20, 0.0])
    noise = torch.Generator().manual_seed(0)
    drawn = torch.stack([rounded_stochastically(values, noise).float() for _ in range(4000)])
    assert torch.allclose(drawn.mean(0), values, rtol=3e-4, atol=0)
    assert ((drawn - values).abs() <= values.abs() * 2**-7).all()
    assert (drawn[:, [0, 4]] == values[[0, 4]]).all(), "what bfloat16 has stays"
