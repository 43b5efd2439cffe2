"""Memory of a job, told before it starts: sentences with the arithmetic, and what can't fit, with the knobs.

Owns the comparison of `areal.admit.memory` with what the job says its GPUs and its volume have. Says nothing about a
model of a family without closed forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from areal.admit.memory import ModelShape, TrainerPlan, plan_server, plan_trainer, shape_of, tokens_in
from areal.admit.memory.activations import Recompute
from areal.admit.memory.budget import Beside, disk_bytes, fewest_ranks, host_bytes, host_state_bytes, longest_that_fits
from areal.dataflow.builtin import needs_of
from areal.spec import Finding, RLJob, Severity
from areal.spec.numbers import exports_kept
from areal.spec.quantity import show_bytes
from areal.spec.resolved_algorithm import has_critic, has_reference
from areal.spec.serving import DEFAULT_CACHE_BYTES, EmbeddedEngine, SglangEngine

_LEAST_ROW = 256  # tokens: shorter rows are no advice
_FROZEN: tuple[Literal["reference"], Literal["teacher"]] = ("reference", "teacher")


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
    if job.spec.reward_model is not None:
        shape = shape.value_model
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


def _beside(job: RLJob, shape: ModelShape, teacher: ModelShape | None) -> Beside:
    """What a rank holds beside the policy, as the trainer loads it."""
    served = job.spec.is_rl and job.spec.algorithm.teacher is not None and job.spec.algorithm.teacher.endpoint
    return {
        "critic": has_critic(job.spec),
        "reference": has_reference(job.spec),
        "teacher": None if served else teacher,
        "offloaded": _offloaded(job),
        "trained": adapter_parameters(job, shape),
        "tensor": job.spec.trainer.mesh.tensor,
        "context": job.spec.trainer.mesh.context,
        "state": job.spec.trainer.optimizer_state,
    }


def _offloaded(job: RLJob) -> frozenset[Literal["reference", "teacher"]]:
    """The frozen models that are in host memory between uses."""
    if not job.spec.is_rl:
        return frozenset()
    needs = needs_of(job.spec)
    placed = {"reference": needs.reference_placement, "teacher": needs.teacher_placement}
    return frozenset(name for name in _FROZEN if placed[name] == "offloaded")


def _trainer(job: RLJob, shape: ModelShape, teacher: ModelShape | None) -> tuple[list[Finding], list[tuple[str, str]]]:
    trainer = job.spec.trainer
    if not trainer.gpus:
        return [], []
    tokens, beside = trainer.micro_batch_tokens, _beside(job, shape, teacher)
    made = partial(
        plan_trainer, shape, ranks=trainer.shards, tokens=tokens, precision=trainer.precision,
        attention=trainer.attention_backend, **beside,
    )  # fmt: skip
    plan = made(recompute=trainer.recompute)
    sums = " + ".join(f"{show_bytes(line.size)} {line.what}" for line in plan.lines)
    copies = f" in {trainer.mesh.replicate} copies" if trainer.mesh.replicate > 1 else ""
    copies += f", {trainer.mesh.tensor} to a layer" if trainer.mesh.tensor > 1 else ""
    copies += f", {trainer.mesh.context} to a row" if trainer.mesh.context > 1 else ""
    sentence = f"{tokens:,} tokens on {trainer.world_size} GPUs{copies}: {sums} = {show_bytes(plan.total)} a rank"
    lines = [("a trainer's GPU", sentence)]
    if trainer.recompute == "none":
        full = made(recompute="full").total
        lines.append(("if recomputed", f"trainer.recompute: full would take {show_bytes(full)}"))
    if away := host_bytes(shape, trainer.shards, beside):
        lines.append(("offloaded", f"{show_bytes(away)} of pinned host memory a rank, for frozen models between uses"))
    if moved := host_state_bytes(shape, trainer.shards, beside):
        lines.append(("optimizer's state", f"{show_bytes(moved)} of host memory a rank: moments, a copy of weights"))
    if job.spec.dpo is not None:
        lines.append(("DPO's reference", "its sums are made before the first step; no second model is held"))
    memory = trainer.gpu_memory
    if memory is None or plan.total <= memory:
        return [], lines
    message = f"{sentence}, and a GPU has {show_bytes(memory)}"
    field = "spec.trainer.microBatchTokens"
    fix = _knobs(job, shape, plan, memory, beside)
    return [Finding("does-not-fit", Severity.ERROR, field, message, fix, job.where(field))], lines


def _knobs(job: RLJob, shape: ModelShape, plan: TrainerPlan, memory: int, beside: Beside) -> str:
    """Fields of the job that would make it fit, each with the value that does."""
    trainer = job.spec.trainer
    sized = partial(
        plan_trainer, shape, ranks=trainer.shards, tokens=plan.tokens, precision=trainer.precision,
        attention=trainer.attention_backend,
    )  # fmt: skip
    modes: tuple[Recompute, ...] = ("selective", "full") if trainer.recompute == "none" else ("full",)
    fits = [one for one in modes if sized(recompute=one, **beside).total <= memory]
    if fits and trainer.recompute in ("none", "selective"):
        return f"Set trainer.recompute to {fits[0]}."
    knobs = [*_shorter(job, shape, memory, beside), *_more_ranks(job, shape, plan, memory, beside)]
    knobs += _offloads(job, sized, memory, beside)
    alone: Beside = {**beside, "reference": False}
    if beside["reference"] and sized(recompute=trainer.recompute, **alone).total <= memory:
        knobs.append("train an adapter (trainer.lora), whose base is the reference, or without one (algorithm.kl)")
    alone = {**alone, "critic": False}
    if beside["critic"] and sized(recompute=trainer.recompute, **alone).total <= memory:
        knobs.append("name an algorithm without a critic")
    if not knobs:
        smaller = "a smaller model" if beside["teacher"] is None else "a smaller model, or from a smaller teacher"
        knobs.append(f"train {smaller}, or on GPUs with more memory")
    advice = ", or ".join(knobs)
    return f"{advice[0].upper()}{advice[1:]}."


def _offloads(job: RLJob, sized: Callable[..., TrainerPlan], memory: int, beside: Beside) -> list[str]:
    """Frozen models that would make it fit from host memory."""
    fields = {"reference": "algorithm.kl.placement", "teacher": "algorithm.teacher.placement"}
    held = [name for name in _FROZEN if job.spec.is_rl and beside[name] and name not in beside["offloaded"]]
    found = []
    for name in held:
        away: Beside = {**beside, "offloaded": beside["offloaded"] | {name}}
        if sized(recompute=job.spec.trainer.recompute, **away).total <= memory:
            found.append(f"set {fields[name]}: offloaded")
    return found


def _shorter(job: RLJob, shape: ModelShape, memory: int, beside: Beside) -> list[str]:
    """Shorter rows that fit."""
    trainer, fixed = job.spec.trainer, job.spec.supervised
    longest = longest_that_fits(
        shape, memory, ranks=trainer.shards, precision=trainer.precision, attention=trainer.attention_backend,
        recompute=trainer.recompute, **beside,
    )  # fmt: skip
    row = job.spec.rollout.max_sample_tokens if fixed is None else fixed.max_tokens
    if longest >= max(_LEAST_ROW, row):
        return [f"lower trainer.microBatchTokens to {longest // 64 * 64:,}"]
    if longest < _LEAST_ROW:
        return []
    field = "rollout.maxSampleTokens" if fixed is None else "training.maxTokens"
    return [f"lower {field} and trainer.microBatchTokens to {longest // 64 * 64:,}"]


def _more_ranks(job: RLJob, shape: ModelShape, plan: TrainerPlan, memory: int, beside: Beside) -> list[str]:
    """More ranks for a copy of the model that fit."""
    trainer = job.spec.trainer
    ranks, world = trainer.shards, trainer.world_size
    more = fewest_ranks(
        shape, memory, tokens=plan.tokens, precision=trainer.precision, attention=trainer.attention_backend,
        recompute=trainer.recompute, **beside,
    )  # fmt: skip
    if more is None or more <= ranks:
        return []
    if more <= world:
        most = next(n for n in range(world // more, 0, -1) if world % n == 0)
        return [f"lower trainer.mesh.replicate to {most}"]
    return [f"train on {more} GPUs (trainer.replicas {-(-more // trainer.gpus)})"]


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
        state=job.spec.trainer.optimizer_state,
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
