"""Tokens a second and useful operations a second, beside what a matrix product and copies reach in the same process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from areal.admit.memory.rank import plan_trainer
from areal.admit.memory.shape import ModelShape
from areal_trainer.engine.host_copy import HostSlab, TensorSpec

from gpu_proof.cell import Measuring, NotTried
from gpu_proof.flops import peak_of, step_flops
from gpu_proof.parts import alone, documents, drop, engine, micros, model, shape, step

WAYS = {
    "4k": (4096, "selective", "blocks"), "16k": (16_384, "selective", "blocks"), "32k": (32_768, "selective", "blocks"),
    "32k-full": (32_768, "full", "blocks"), "16k-plain": (16_384, "selective", "none"),
}  # fmt: skip
"""Tokens of a row, what is computed again, what is compiled."""

DOCUMENTS = 2  # of a step, a micro-batch each
ROUNDS = 3


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of one call, to the end of what it started on the device."""
    _wait(device)
    began = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matrix_product(device: torch.device, size: int) -> float:
    """Operations a second of a product of two square bfloat16 matrices; the best of ten."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / min(seconds(lambda: torch.matmul(left, right), device) for _ in range(10))


def ceilings(proof: Measuring) -> None:
    """The cell: the most that this machine does of a product and of copies."""
    device = proof.device
    size, copied = (8192, 4 << 30) if proof.cuda else (512, 64 << 20)
    proof.measured("matrix-product", matrix_product(device, size) / 1e12)
    source = torch.empty(copied, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    best = min(seconds(lambda: target.copy_(source), device) for _ in range(10))
    proof.measured("device-copy", 2 * copied / best / 1e9)
    if not proof.cuda:
        return
    part = copied // 4
    host = HostSlab("a proof", {"": TensorSpec((part,), torch.uint8)}, device).touch().views[""]
    here = source[:part]
    for claim, to, what in (("to-host", host, here), ("to-device", here, host)):
        best = min(seconds(lambda to=to, what=what: to.copy_(what, non_blocking=True), device) for _ in range(10))
        proof.measured(claim, part / best / 1e9)


def speed(proof: Measuring) -> None:
    """The cells of a model's speed."""
    name = proof.cell.name.removeprefix("speed-")
    product = matrix_product(proof.device, 8192 if proof.cuda else 512)
    for way, (length, recompute, compiled) in WAYS.items():
        if not proof.cuda and way != "4k":
            continue
        claim = f"{name}-{way}"
        used, tokens = (name, length) if proof.cuda else ("small", 256)
        sizes = shape(used)
        plan = plan_trainer(
            sizes, ranks=1, tokens=tokens, precision="bfloat16", attention="varlen", recompute=recompute,
            card=torch.cuda.get_device_properties(0).total_memory if proof.cuda else 0, fused=compiled == "blocks",
        )  # type: ignore[arg-type]  # fmt: skip
        try:
            proof.fits(plan.total, f"{name} with rows of {length} tokens")
            _way(proof, claim, used, sizes, (tokens, recompute, compiled), product)
        except NotTried as error:
            proof.not_tried(claim, str(error))
        except torch.OutOfMemoryError as error:
            proof.measured(claim, float("nan"), error=str(error).splitlines()[0])


def _way(proof: Measuring, claim: str, name: str, sizes: ModelShape, how: tuple[int, str, str], product: float) -> None:
    """Train one way for some rounds; the first isn't counted."""
    length, recompute, compiled = how
    given = documents(DOCUMENTS, length, sizes.vocabulary)
    parts = micros(given, length)
    with alone() as ranks:
        fused = compiled if proof.cuda else "none"  # attention by segments on a CPU reads lengths, which no graph takes
        policy = engine(model(name, proof.work, proof.device), ranks, recompute=recompute, compile=fused)
        train = partial(step, policy, given, parts, 1e-6)
        step_s = statistics.median([seconds(train, proof.device) for _ in range(ROUNDS + 1)][1:])
    flops = step_flops(sizes, [length] * DOCUMENTS, int(given.trainable().sum())) / step_s
    card = torch.cuda.get_device_name(0) if proof.cuda else ""
    proof.measured(
        claim, flops / peak_of(card, product), of_matrix_product=flops / product, tflops=flops / 1e12, step_s=step_s,
        tokens_per_s=round(given.tokens / step_s),
    )  # fmt: skip
    del policy, train
    drop()


FUNCTIONS = {"ceilings": ceilings, **{f"speed-{name}": speed for name in ("0.5b", "1.5b", "8b-eight")}}
