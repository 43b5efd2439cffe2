"""The canary on this device: what an engine on the host's cores says of its tokens, with weights right and wrong."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from areal.engine.model import DecoderModel
from areal.engine.model_config import ModelConfig
from areal.engine.weights import build_weights, read_tensors
from areal.errors import DataError
from areal.weights.manifest import Canary, difference, problem
from areal_trainer.engine.engine import PolicyEngine
from areal_trainer.publish import canary as product
from safetensors.torch import load_file, save_file
from torch import Tensor

from gpu_proof.cell import Measuring
from gpu_proof.parts import alone, engine, model

LAYERS = 8
SHARP = 5.0  # of the head, and layers that count: random weights are sure of what they say, as trained ones are
LAYER_STD = 0.1

Tensors = dict[str, Tensor]


def _name(layer: int, part: str) -> str:
    return f"model.layers.{layer}.{part}.weight"


def _zeroed(tensors: Tensors) -> Tensors:
    name = _name(LAYERS // 2, "mlp.down_proj")
    return {**tensors, name: torch.zeros_like(tensors[name])}


def _flipped(tensors: Tensors) -> Tensors:
    """The rows of a matrix in another order, as of ranks whose parts were mixed up."""
    name = _name(LAYERS // 2, "self_attn.o_proj")
    return {**tensors, name: tensors[name].flip(0).contiguous()}


def _swapped(tensors: Tensors) -> Tensors:
    one, two = "model.layers.3.", "model.layers.4."
    there = {name.replace(one, two): value for name, value in tensors.items() if name.startswith(one)}
    back = {name.replace(two, one): value for name, value in tensors.items() if name.startswith(two)}
    return {**tensors, **there, **back}


def _unwritten(tensors: Tensors) -> Tensors:
    """Memory that nobody wrote: any bits."""
    name = _name(5, "mlp.up_proj")
    random = torch.Generator().manual_seed(0)
    bits = torch.randint(-(1 << 15), 1 << 15, tensors[name].shape, dtype=torch.int16, generator=random)
    return {**tensors, name: bits.view(torch.bfloat16)}


def _half(tensors: Tensors) -> Tensors:
    """The second half of the layers is another model's."""
    late = [name for name in tensors if any(name.startswith(f"model.layers.{n}.") for n in range(LAYERS // 2, LAYERS))]
    return {**tensors, **{name: tensors[name].flip(0).contiguous() for name in late}}


FAULTS: tuple[Callable[[Tensors], Tensors], ...] = (_zeroed, _flipped, _swapped, _unwritten, _half)


def canary(proof: Measuring) -> None:
    """The cell."""
    with alone() as ranks:
        place = model(
            "small", proof.work, proof.device, scale=SHARP, num_hidden_layers=LAYERS, initializer_range=LAYER_STD
        )
        policy = engine(place, ranks)
        with _second_engines() as others:
            before = _allocated(proof)
            probe = product.prepare(policy, place)
            left = max(0, _allocated(proof) - before) / 2**20
        alive = sum(one() is not None for one in others)
        proof.measured("canary-memory", left if not alive else float("inf"), engines=len(others), alive=alive)
        expected = product.canary(policy, probe)
        tensors = load_file(place / "model.safetensors")
        clean = difference(_scored(place, expected, tensors, proof.work), expected.logprobs[1:])
        allowed = expected.mean_tolerance or expected.tolerance
        proof.measured("canary-clean", clean.mean / allowed, mean=clean.mean, spread=probe.spread)
        found = [fault.__name__[1:] for fault in FAULTS if _found(place, expected, fault(tensors), proof.work)]
        proof.measured("canary-faults", len(found), found=found)


@contextmanager
def _second_engines() -> Iterator[list[weakref.ref[Any]]]:
    """The engines that the canary makes meanwhile."""
    made: list[weakref.ref[Any]] = []
    usual = product.PolicyEngine

    class Watched(PolicyEngine):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(weakref.ref(self))

    product.PolicyEngine = Watched  # type: ignore[misc]
    try:
        yield made
    finally:
        product.PolicyEngine = usual  # type: ignore[misc]


def _allocated(proof: Measuring) -> int:
    """Bytes of the card that tensors have; 0 without one, where the engine's own end is what counts."""
    if proof.cuda:
        gc.collect()
    return torch.cuda.memory_allocated() if proof.cuda else 0


def _scored(place: Path, expected: Canary, tensors: Tensors, work: Path) -> list[float]:
    """Log-probabilities of the canary's tokens by the embedded engine, on the host's cores."""
    room = work / "served"
    room.mkdir(exist_ok=True)
    save_file(tensors, room / "model.safetensors")
    config = ModelConfig.from_dir(place)
    loaded = build_weights(room, read_tensors(room), config, torch.bfloat16)
    ids = torch.tensor([expected.token_ids])
    served = DecoderModel(config, torch.bfloat16, ids.shape[1])
    with torch.no_grad():
        hidden = served.prefill(loaded, None, ids, None, hidden=True)
        assert hidden is not None
        logits = served.logits(loaded, hidden[0, :-1])
    scores: list[float] = logits.log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1).tolist()
    return scores


def _found(place: Path, expected: Canary, tensors: Tensors, work: Path) -> bool:
    """Whether a server with these weights would be told that they are wrong."""
    try:
        scored = _scored(place, expected, tensors, work)
    except DataError:
        return True
    return problem(expected, difference(scored, expected.logprobs[1:])) is not None


FUNCTIONS = {"canary": canary}
