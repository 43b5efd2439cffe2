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
from areal.spec.numbers import exports_kept
from areal.spec.quantity import show_bytes
from areal.spec.resolved_algorithm import has_critic
from areal.spec.serving import DEFAULT_CACHE_BYTES, EmbeddedEngine, SglangEngine
from areal.spec.supervised import BLOCKS

_LEAST_ROW = 256  # tokens: shorter rows are no advice


def memory_of(
    job: RLJob, config: Mapping[str, Any], of_teacher: Mapping[str, Any] | None = None
) -> tuple[list[Finding], list[tuple[str, str]]]:
    """What doesn't fit, and lines for people: a subject and a sentence each.

    Args:
        config: the model's config.json.
        of_teacher: the one of its teacher, where it has one.
    """
    shape = shape_of(config)
    if shape is None:
        return [], []
    findings, lines = _disk(job, shape)
    teacher = None if of_teacher is None else shape_of(of_teacher)
    for found, said in (_trainer(job, shape, teacher), _server(job, shape)):
        findings += found
        lines += said
    return findings, lines


def caches_of(job: RLJob, memory: int) -> list[Finding]:
    """What is wrong with the caches of servers on one machine that has `memory` bytes.

    The default is no promise of the job's: small models fill little of it.
    """
    engine, servers = job.spec.generation.engine, job.spec.generation.replicas
    if not job.spec.is_rl or not isinstance(engine, EmbeddedEngine) or engine.cache_memory <= DEFAULT_CACHE_BYTES:
        return []
    if servers * engine.cache_memory <= memory:
        return []
    field = "spec.generation.engine.cacheMemory"
    caches = "its cache" if servers == 1 else f"the caches of {servers} servers"
    message = (
        f"{caches} may take {show_bytes(servers * engine.cache_memory)}, and this machine has {show_bytes(memory)}"
    )
    fix = f"Lower generation.engine.cacheMemory below {show_bytes(memory // servers)}, or leave it out."
    return [Finding("cache-beyond-memory", Severity.ERROR, field, message, fix, job.where(field))]


def adapter_parameters(job: RLJob, shape: ModelShape) -> int | None:
    """Of the adapter that is trained; None where all weights are."""
    lora = job.spec.trainer.lora
    return None if lora is None else shape.adapter_parameters(lora.rank, lora.targets)


def _trainer(job: RLJob, shape: ModelShape, teacher: ModelShape | None) -> tuple[list[Finding], list[tuple[str, str]]]:
    trainer = job.spec.trainer
    if not trainer.gpus:
        return [], []
    tokens = trainer.micro_batch_tokens
    critic, trained = has_critic(job.spec), adapter_parameters(job, shape)
    made = partial(
        plan_trainer, shape, ranks=trainer.shards, tokens=tokens, precision=trainer.precision, critic=critic,
        trained=trained, tensor=trainer.mesh.tensor, teacher=teacher,
    )  # fmt: skip
    plan = made(attention=trainer.attention_backend, recompute=trainer.recompute)
    sums = " + ".join(f"{show_bytes(line.size)} {line.what}" for line in plan.lines)
    copies = f" in {trainer.mesh.replicate} copies" if trainer.mesh.replicate > 1 else ""
    copies += f", {trainer.mesh.tensor} to a layer" if trainer.mesh.tensor > 1 else ""
    sentence = f"{tokens:,} tokens on {trainer.world_size} GPUs{copies}: {sums} = {show_bytes(plan.total)} a rank"
    lines = [("a trainer's GPU", sentence)]
    full = made(attention=trainer.attention_backend, recompute="full").total
    if trainer.recompute == "none":
        lines.append(("if recomputed", f"trainer.recompute: full would take {show_bytes(full)}"))
    memory = trainer.gpu_memory
    if memory is None or plan.total <= memory:
        return [], lines
    message = f"{sentence}, and a GPU has {show_bytes(memory)}"
    field = "spec.trainer.microBatchTokens"
    fix = _knobs(job, shape, plan, memory, teacher)
    return [Finding("does-not-fit", Severity.ERROR, field, message, fix, job.where(field))], lines


def _knobs(job: RLJob, shape: ModelShape, plan: TrainerPlan, memory: int, teacher: ModelShape | None) -> str:
    """Fields of the job that would make it fit, each with the value that does."""
    trainer = job.spec.trainer
    attention, ranks, tokens = trainer.attention_backend, trainer.shards, plan.tokens
    critic, trained = has_critic(job.spec), adapter_parameters(job, shape)
    split = trainer.mesh.tensor
    sized = partial(
        plan_trainer, shape, ranks=ranks, tokens=tokens, precision=trainer.precision, critic=critic, trained=trained,
        tensor=split, teacher=teacher,
    )  # fmt: skip
    modes: tuple[Recompute, ...] = ("selective", "full") if trainer.recompute == "none" else ("full",)
    fits = [one for one in modes if sized(attention=attention, recompute=one).total <= memory]
    if fits and trainer.recompute in ("none", "selective"):
        return f"Set trainer.recompute to {fits[0]}."
    precision, mode = trainer.precision, trainer.recompute
    knobs = []
    longest = longest_that_fits(
        shape,
        memory,
        ranks=ranks,
        precision=precision,
        attention=attention,
        recompute=mode,
        critic=critic,
        trained=trained,
        tensor=split,
        teacher=teacher,
    )
    fixed = job.spec.supervised
    row = job.spec.rollout.max_sample_tokens if fixed is None else fixed.max_tokens
    if longest >= max(_LEAST_ROW, row):
        knobs.append(f"lower trainer.microBatchTokens to {longest // 64 * 64:,}")
    elif longest >= _LEAST_ROW:
        rounded = f"{longest // 64 * 64:,}"
        field = "rollout.maxSampleTokens" if fixed is None else f"{BLOCKS[job.spec.training]}.maxTokens"
        knobs.append(f"lower {field} and trainer.microBatchTokens to {rounded}")
    more = fewest_ranks(
        shape,
        memory,
        tokens=tokens,
        precision=precision,
        attention=attention,
        recompute=mode,
        critic=critic,
        trained=trained,
        tensor=split,
        teacher=teacher,
    )
    if more is not None and ranks < more <= trainer.world_size:
        most = next(n for n in range(trainer.world_size // more, 0, -1) if trainer.world_size % n == 0)
        knobs.append(f"lower trainer.mesh.replicate to {most}")
    elif more is not None and more > ranks:
        knobs.append(f"train on {more} GPUs (trainer.replicas {-(-more // trainer.gpus)})")
    if not knobs:
        knobs.append("train a smaller model, or on GPUs with more memory")
    advice = ", or ".join(knobs)
    return f"{advice[0].upper()}{advice[1:]}."


def _server(job: RLJob, shape: ModelShape) -> tuple[list[Finding], list[tuple[str, str]]]:
    engine, memory = job.spec.generation.engine, job.spec.trainer.gpu_memory
    if not job.spec.is_rl:
        return [], []
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
    keep, exports = job.spec.checkpoint.keep, exports_kept(job)
    needed = disk_bytes(
        shape.parameters,
        checkpoints=keep,
        dtype=job.spec.generation.engine.dtype,
        models=1 + has_critic(job.spec),
        trained=adapter_parameters(job, shape),
        exports=exports,
    )
    models = f" and {exports} exported models" if exports else ""
    sentence = f"{keep} + 1 checkpoints and 3 versions of the weights{models} take {show_bytes(needed)}"
    size = job.spec.storage.size
    if size is None or size >= needed:
        return [], [("disk", sentence)] if job.spec.trainer.gpus else []
    field = "spec.storage.size"
    message = f"the volume has {show_bytes(size)}, and {sentence}"
    or_exports = " or export.keep" if exports else ""
    fix = f"Raise storage.size to {-(-needed // (1 << 30))}Gi, or lower checkpoint.keep{or_exports}."
    return [Finding("disk-too-small", Severity.ERROR, field, message, fix, job.where(field))], []
