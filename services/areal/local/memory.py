"""Memory of a job, told before it starts: sentences with the arithmetic, and what can't fit, with the knobs.

Owns the comparison of `areal.plan.memory` with what the job says its GPUs and its volume have. Says nothing about a
model of a family without closed forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from areal.plan.memory import ModelShape, TrainerPlan, plan_server, plan_trainer, shape_of, tokens_in
from areal.plan.memory.activations import Recompute
from areal.plan.memory.budget import disk_bytes, fewest_ranks, longest_that_fits
from areal.spec import Finding, RLJob, Severity
from areal.spec.quantity import show_bytes
from areal.spec.resolved_algorithm import has_critic
from areal.spec.serving import EmbeddedEngine, SglangEngine

_LEAST_ROW = 256  # tokens: shorter rows are no advice


def memory_of(job: RLJob, config: Mapping[str, Any]) -> tuple[list[Finding], list[tuple[str, str]]]:
    """What doesn't fit, and lines for people: a subject and a sentence each.

    Args:
        config: the model's config.json.
    """
    shape = shape_of(config)
    if shape is None:
        return [], []
    findings, lines = _disk(job, shape)
    for found, said in (_trainer(job, shape), _server(job, shape)):
        findings += found
        lines += said
    return findings, lines


def _trainer(job: RLJob, shape: ModelShape) -> tuple[list[Finding], list[tuple[str, str]]]:
    trainer = job.spec.trainer
    if not trainer.gpus:
        return [], []
    ranks, tokens = trainer.world_size, trainer.micro_batch_tokens
    critic = has_critic(job.spec)
    made = partial(plan_trainer, shape, ranks=ranks, tokens=tokens, precision=trainer.precision, critic=critic)
    plan = made(attention=trainer.attention_backend, recompute=trainer.recompute)
    sums = " + ".join(f"{show_bytes(line.size)} {line.what}" for line in plan.lines)
    sentence = f"{tokens:,} tokens on {ranks} GPUs: {sums} = {show_bytes(plan.total)} a rank"
    lines = [("a trainer's GPU", sentence)]
    full = made(attention=trainer.attention_backend, recompute="full").total
    if trainer.recompute == "none":
        lines.append(("if recomputed", f"trainer.recompute: full would take {show_bytes(full)}"))
    memory = trainer.gpu_memory
    if memory is None or plan.total <= memory:
        return [], lines
    message = f"{sentence}, and a GPU has {show_bytes(memory)}"
    field = "spec.trainer.microBatchTokens"
    fix = _knobs(job, shape, plan, memory)
    return [Finding("does-not-fit", Severity.ERROR, field, message, fix, job.where(field))], lines


def _knobs(job: RLJob, shape: ModelShape, plan: TrainerPlan, memory: int) -> str:
    """Fields of the job that would make it fit, each with the value that does."""
    trainer = job.spec.trainer
    attention, ranks, tokens = trainer.attention_backend, trainer.world_size, plan.tokens
    critic = has_critic(job.spec)
    sized = partial(plan_trainer, shape, ranks=ranks, tokens=tokens, precision=trainer.precision, critic=critic)
    modes: tuple[Recompute, ...] = ("selective", "full") if trainer.recompute == "none" else ("full",)
    fits = [one for one in modes if sized(attention=attention, recompute=one).total <= memory]
    if fits and trainer.recompute in ("none", "selective"):
        return f"Set trainer.recompute to {fits[0]}."
    precision, mode = trainer.precision, trainer.recompute
    knobs = []
    longest = longest_that_fits(
        shape, memory, ranks=ranks, precision=precision, attention=attention, recompute=mode, critic=critic
    )
    if longest >= max(_LEAST_ROW, job.spec.rollout.max_sample_tokens):
        knobs.append(f"lower trainer.microBatchTokens to {longest // 64 * 64:,}")
    elif longest >= _LEAST_ROW:
        rounded = f"{longest // 64 * 64:,}"
        knobs.append(f"lower rollout.maxSampleTokens and trainer.microBatchTokens to {rounded}")
    more = fewest_ranks(
        shape, memory, tokens=tokens, precision=precision, attention=attention, recompute=mode, critic=critic
    )
    if more is not None and more > ranks:
        knobs.append(f"train on {more} GPUs (trainer.replicas {-(-more // trainer.gpus)})")
    if not knobs:
        knobs.append("train a smaller model, or on GPUs with more memory")
    advice = ", or ".join(knobs)
    return f"{advice[0].upper()}{advice[1:]}."


def _server(job: RLJob, shape: ModelShape) -> tuple[list[Finding], list[tuple[str, str]]]:
    engine, memory = job.spec.generation.engine, job.spec.trainer.gpu_memory
    if isinstance(engine, EmbeddedEngine):
        tokens, sample = tokens_in(shape, engine.cache_memory, engine.dtype), job.spec.rollout.max_sample_tokens
        held = f"generation.engine.cacheMemory, {show_bytes(engine.cache_memory)}, holds {tokens:,} tokens"
        return [], [("a server's cache", f"{held}, {tokens // sample:,} samples of {sample:,}")]
    if not isinstance(engine, SglangEngine) or not engine.gpus or memory is None:
        return [], []
    plan = plan_server(shape, memory, parts=engine.tensor_parallel, dtype=engine.dtype, share=engine.mem_fraction)
    sample = job.spec.rollout.max_sample_tokens
    sentence = (
        f"{show_bytes(plan.weights)} of weights in {show_bytes(plan.room)} for weights and cache; a server's cache "
        f"holds {plan.cache_tokens:,} tokens, {plan.cache_tokens // sample:,} samples of {sample:,}"
    )
    lines = [("a server's GPU", sentence)]
    if plan.cache_tokens >= sample:
        return [], lines
    field = "spec.generation.engine.tensorParallel"
    fix = "Raise generation.engine.tensorParallel, or lower rollout.maxSampleTokens."
    return [Finding("server-does-not-fit", Severity.ERROR, field, sentence, fix, job.where(field))], lines


def _disk(job: RLJob, shape: ModelShape) -> tuple[list[Finding], list[tuple[str, str]]]:
    keep = job.spec.checkpoint.keep
    needed = disk_bytes(
        shape.parameters, checkpoints=keep, dtype=job.spec.generation.engine.dtype, models=1 + has_critic(job.spec)
    )
    sentence = f"{keep} + 1 checkpoints and 3 versions of the weights take {show_bytes(needed)}"
    size = job.spec.storage.size
    if size is None or size >= needed:
        return [], [("disk", sentence)] if job.spec.trainer.gpus else []
    field = "spec.storage.size"
    message = f"the volume has {show_bytes(size)}, and {sentence}"
    fix = f"Raise storage.size to {-(-needed // (1 << 30))}Gi, or lower checkpoint.keep."
    return [Finding("disk-too-small", Severity.ERROR, field, message, fix, job.where(field))], []
