"""Bytes: pinned as planned, the peak of a step as planned, and what is dropped really gone."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import numpy as np
import psutil
import torch
from areal.admit.memory.rank import plan_trainer
from areal_trainer.engine.engine import PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.host_copy import HostSlab, TensorSpec, specs_of
from areal_trainer.engine.offload import OffloadedParameters
from areal_trainer.engine.optimizer import local
from torch import Tensor

from gpu_proof.cell import Measuring
from gpu_proof.parts import alone, batch, differing, documents, drop, engine, likelihood, micros, model, shape, step

TOKENS = {"0.5b": 8192, "1.5b": 8192, "8b-third": 4096}
FRAGMENTING = 200  # micro-batches
SLAB = 256 << 20  # bytes; on a card more
MANY = 8


def host(proof: Measuring) -> None:
    """The cell: the copy that a checkpoint is written from."""
    with alone() as ranks:
        policy = engine(model("small", proof.work, proof.device), ranks)
        step(policy, *_small())
        specs = specs_of((name, local(value)) for name, value in policy.state().items())
        slab = HostSlab("a proof", specs, proof.device)
        asked = sum(spec.size for spec in specs.values())
        proof.measured("pinned-bytes", abs(slab.size / asked - 1), bytes=slab.size)
        if proof.cuda:
            proof.measured("pinned-everything", sum(not view.is_pinned() for view in slab.views.values()))
    size = SLAB * (MANY if proof.cuda else 1)
    before = _resident()
    large = HostSlab("a proof", {"": TensorSpec((size,), torch.uint8)}, proof.device).touch()
    held = _resident() - before
    del large
    gc.collect()
    proof.measured("pinned-back", max(0, _resident() - before) / held, bytes=held)


def _small(room: int = 512) -> tuple[Any, Any]:
    tokens = batch(2, 2, (40, 80))
    return tokens, micros(tokens, room, room // 2)


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def device(proof: Measuring) -> None:
    """The cell: what is dropped, offloaded, fragmented and waited for."""
    name = "0.5b" if proof.cuda else "small"
    with alone() as ranks:
        place = model(name, proof.work, proof.device)
        _freed_engine(proof, place, ranks)
        policy = engine(place, ranks)
        _frozen(proof, policy)
        del policy
        drop()
        if proof.cuda:
            _fragments(proof, place, ranks)
            _synchronisations(proof, ranks)


def _held(tensors: list[Tensor]) -> int:
    """Bytes of the card, or of these tensors' storages where there is none."""
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().size() for one in tensors}
    return sum(storages.values())


def _freed_engine(proof: Measuring, place: Any, ranks: RankGroup) -> None:
    """Memory of a trained engine that is still there once nobody has it."""
    drop()
    before = torch.cuda.memory_allocated() if proof.cuda else 0
    policy = engine(place, ranks)
    step(policy, *_small())
    held = [local(value) for value in policy.state().values()]
    total = _held(held) - before
    watched = [weakref.ref(one.untyped_storage()) for one in held] if not proof.cuda else []
    parts = [one.untyped_storage().size() for one in held] if not proof.cuda else []
    del policy, held
    drop()
    left = sum(size for one, size in zip(watched, parts, strict=True) if one() is not None)
    left += torch.cuda.memory_allocated() - before if proof.cuda else 0
    proof.measured("freed-engine", max(0, left) / total, bytes=total)


def _frozen(proof: Measuring, policy: PolicyEngine) -> None:
    """A frozen model's parameters in host memory, and on the device again."""
    parameters = list(policy.parameters())
    tensors = [local(one.detach()) for one in parameters]
    exact = {str(number): one.cpu().clone() for number, one in enumerate(tensors)}
    before = _held(tensors)
    away = OffloadedParameters(parameters)
    drop()
    size = away.size
    left = _held(tensors) - (before - size) if proof.cuda else _held(tensors)
    proof.measured("freed-frozen", max(0, left) / size, bytes=size)
    with away.on_device():
        back = {str(number): one.cpu().clone() for number, one in enumerate(tensors)}
    proof.measured("frozen-bytes", differing(back, exact))


def _fragments(proof: Measuring, place: Any, ranks: RankGroup) -> None:
    """What the allocator keeps of what tensors had at the most, after rows of many lengths."""
    policy = engine(place, ranks, recompute="selective")
    random = np.random.default_rng(0)
    torch.cuda.reset_peak_memory_stats()
    for length in random.integers(256, 8192, FRAGMENTING).tolist():
        tokens = documents(1, length, 10_000)
        policy.accumulate(micros(tokens, length), likelihood(tokens))
        for parameter in policy.trained().values():
            parameter.grad = None
    peak = torch.cuda.max_memory_allocated()
    proof.measured("fragments", torch.cuda.memory_reserved() / peak, reserved=torch.cuda.memory_reserved(), peak=peak)
    del policy
    drop()


def _synchronisations(proof: Measuring, ranks: RankGroup) -> None:
    """Waits of the host for the card in a forward and backward pass, of 2 layers and of 6."""
    counts = []
    for layers in (2, 6):
        policy = engine(model("small", proof.work, proof.device, num_hidden_layers=layers), ranks)
        tokens, parts = _small()
        policy.accumulate(parts, likelihood(tokens))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            policy.accumulate(parts, likelihood(tokens))
            torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchroniz" in str(one.message) for one in seen))
    proof.measured("synchronisations", counts[1] - counts[0], of_two_layers=counts[0], micro_batches=len(parts))


def peak(proof: Measuring) -> None:
    """The cells of a model's peak: its step's, of one and of two micro-batches, beside the plan."""
    _, _, rest = proof.cell.name.partition("-")
    name, _, mode = rest.rpartition("-")
    tokens, sizes, compiled = TOKENS[name], shape(name), mode == "compiled"
    recompute: Any = "selective" if compiled else mode
    card = torch.cuda.get_device_properties(0).total_memory if proof.cuda else 0
    plan = plan_trainer(
        sizes, ranks=1, tokens=tokens, precision="bfloat16", attention="varlen", recompute=recompute, card=card,
        fused=compiled,
    )  # fmt: skip
    proof.fits(plan.total, f"{name} with rows of {tokens} tokens")
    planned = sum(line.size for line in plan.lines if "estimate" not in line.what)
    with alone() as ranks:
        ways = {"recompute": recompute, "compile": "blocks" if compiled else "none"}
        policy = engine(model(name, proof.work, proof.device), ranks, **ways)
        drop()
        for count in (1, 2):
            given = documents(count, tokens, sizes.vocabulary)
            parts = micros(given, tokens)
            step(policy, given, parts, 1e-6)  # moments are there, kernels chosen
            torch.cuda.reset_peak_memory_stats()
            step(policy, given, parts, 1e-6)
            found = torch.cuda.max_memory_allocated()
            off = found / planned - 1  # of one, gradients aren't there yet where most is needed: it may stay below
            proof.measured(f"{rest}-{count}", max(0.0, off) if count == 1 else abs(off), peak=found, planned=planned)


FUNCTIONS = {
    "host-memory": host, "device-memory": device,
    **{f"memory-{name}": peak for name in
       ("0.5b-selective", "0.5b-full", "1.5b-selective", "1.5b-full", "1.5b-compiled", "8b-third-selective")},
}  # fmt: skip
