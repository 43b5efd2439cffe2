"""Advice of the memory plan: what doesn't fit on a trainer's GPU, and the fields of the job that would make it fit.

Owns the order of the knobs. Every one that is named was tried: with it the plan fits, at the figure beside it. Pure.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from areal.admit.memory import rank
from areal.admit.memory.rank import Recompute
from areal.admit.memory.shape import ModelShape, adapter_of
from areal.admit.memory.volume import OptimizerState, asleep_bytes
from areal.dataflow.builtin import needs_of
from areal.spec import Finding, RLJob, Severity
from areal.spec.quantity import show_bytes
from areal.spec.resolved_algorithm import has_critic, has_reference
from areal.spec.training import Lora

Said = tuple[list[Finding], list[tuple[str, str]]]
"""What doesn't fit, and lines for people: a subject and a sentence each."""

_USUAL_CARD = 79 << 30  # bytes that a card of 80 GB shows
_LEAST_ROW = 256  # tokens: shorter rows are no advice
_FROZEN: tuple[Literal["reference"], Literal["teacher"]] = ("reference", "teacher")


def work_of(job: RLJob, trained: int | None, teacher: ModelShape | None) -> rank.RankWork:
    """How a rank works, and what it holds beside the policy, as the trainer loads it."""
    served = job.spec.is_rl and job.spec.algorithm.teacher is not None and job.spec.algorithm.teacher.endpoint
    return {
        "precision": job.spec.trainer.precision,
        "attention": job.spec.trainer.attention_backend,
        "recompute": job.spec.trainer.recompute,
        "critic": has_critic(job.spec),
        "reference": has_reference(job.spec),
        "teacher": None if served else teacher,
        "offloaded": _placed_in_host(job),
        "trained": trained,
        "tensor": job.spec.trainer.mesh.tensor,
        "context": job.spec.trainer.mesh.context,
        "state": job.spec.trainer.optimizer_state,
        "canary": job.spec.is_rl and job.spec.trainer.precision == "bfloat16",
        "card": job.spec.trainer.gpu_memory or _USUAL_CARD,
        "fused": job.spec.trainer.compile == "blocks" and not job.spec.trainer.fp32_head and teacher is None,
    }


def _placed_in_host(job: RLJob) -> frozenset[Literal["reference", "teacher"]]:
    """The frozen models that are in host memory between uses."""
    if not job.spec.is_rl:
        return frozenset()
    needs = needs_of(job.spec)
    placed = {"reference": needs.reference_placement, "teacher": needs.teacher_placement}
    return frozenset(name for name in _FROZEN if placed[name] == "offloaded")


def rank_memory(job: RLJob, shape: ModelShape, trained: int | None, teacher: ModelShape | None) -> Said:
    trainer = job.spec.trainer
    if not trainer.gpus:
        return [], []
    tokens, work = trainer.micro_batch_tokens, work_of(job, trained, teacher)
    made = partial(rank.plan_trainer, shape, ranks=trainer.shards, tokens=tokens, **work)
    plan = made()
    sums = " + ".join(f"{show_bytes(line.size)} {line.what}" for line in plan.lines)
    copies = f" in {trainer.mesh.replicate} copies" if trainer.mesh.replicate > 1 else ""
    copies += f", {trainer.mesh.tensor} to a layer" if trainer.mesh.tensor > 1 else ""
    copies += f", {trainer.mesh.context} to a row" if trainer.mesh.context > 1 else ""
    sentence = f"{tokens:,} tokens on {trainer.world_size} GPUs{copies}: {sums} = {show_bytes(plan.total)} a rank"
    lines = [("a shared GPU while the trainer works" if job.spec.shared_cards else "a trainer's GPU", sentence)]
    asleep = asleep_bytes(job, shape)
    if asleep:
        kept = ", the adapter's base among them" if job.spec.trainer.lora is not None else ""
        lines.append(("its server asleep", f"{show_bytes(asleep)} stay there{kept} (estimate)"))
    if work["canary"]:
        start = rank.plan_start(shape, trainer.shards, tokens, trainer.precision, work)
        words = "with the start model once more in float32, for the canary; it is gone before the first step"
        lines.append(("a trainer's GPU at start", f"{show_bytes(start.total)} a rank, {words}"))
    if trainer.recompute == "none":
        full = made(recompute="full").total
        lines.append(("if recomputed", f"trainer.recompute: full would take {show_bytes(full)}"))
    if job.spec.dpo is not None:
        lines.append(("DPO's reference", "its sums are made before the first step; no second model is held"))
    if trainer.gpu_memory is None or plan.total + asleep <= trainer.gpu_memory:
        return [], lines
    memory = trainer.gpu_memory - asleep
    left = f", of which a sleeping server keeps {show_bytes(asleep)}" if asleep else ""
    message = f"{sentence}, and a GPU has {show_bytes(trainer.gpu_memory)}{left}"
    field = "spec.trainer.microBatchTokens"
    fix = _knobs(job, shape, plan, memory, work)
    return [Finding("does-not-fit", Severity.ERROR, field, message, fix, job.where(field))], lines


def _knobs(job: RLJob, shape: ModelShape, plan: rank.TrainerPlan, memory: int, work: rank.RankWork) -> str:
    """Fields of the job that would make it fit, each with the value that does and what a GPU would hold then."""
    trainer = job.spec.trainer
    sized = partial(rank.plan_trainer, shape, ranks=trainer.shards, tokens=plan.tokens, **work)
    modes: tuple[Recompute, ...] = ("selective", "full") if trainer.recompute in ("none", "selective") else ()
    modes = tuple(mode for mode in modes if mode != trainer.recompute)
    for mode in modes:
        if (total := sized(recompute=mode).total) <= memory:
            return f"Set trainer.recompute to {mode} ({show_bytes(total)})."
    knobs = _states(sized, (trainer.recompute, *modes), memory, work)
    knobs += [*_shorter(job, shape, memory, work), *_more_ranks(job, shape, plan, memory, work)]
    knobs += _offloads(job, sized, memory, work)
    knobs += _adapter(job, shape, sized, trainer.gpu_memory or memory, work)
    if work["reference"] and sized(reference=False).total <= memory:
        knobs.append("train an adapter (trainer.lora), whose base is the reference, or without one (algorithm.kl)")
    if work["critic"] and sized(reference=False, critic=False).total <= memory:
        knobs.append("name an algorithm without a critic")
    if not knobs:
        smaller = "a smaller model" if work["teacher"] is None else "a smaller model, or from a smaller teacher"
        knobs.append(f"train {smaller}, or on GPUs with more memory")
    advice = ", or ".join(knobs)
    return f"{advice[0].upper()}{advice[1:]}."


def _adapter(
    job: RLJob, shape: ModelShape, sized: Callable[..., rank.TrainerPlan], memory: int, work: rank.RankWork
) -> list[str]:
    """An adapter instead of all weights, where cards are shared: few hold a whole optimizer, most one of an adapter."""
    if not job.spec.shared_cards or work["trained"] is not None or work["critic"]:
        return []
    spec = job.spec.model_copy(update={"trainer": job.spec.trainer.model_copy(update={"lora": Lora()})})
    adapted = job.model_copy(update={"spec": spec})
    total = sized(trained=adapter_of(adapted, shape), reference=False).total
    if total + asleep_bytes(adapted, shape) > memory:
        return []
    return [f"train an adapter, trainer.lora: {{}} ({show_bytes(total)})"]


def _states(
    sized: Callable[..., rank.TrainerPlan], modes: Sequence[Recompute], memory: int, work: rank.RankWork
) -> list[str]:
    """The first kind of optimizer's states that fits, with the least that is computed again."""
    now = rank.MOMENT_BYTES[work["state"]]
    kinds: list[OptimizerState] = [kind for kind in ("bfloat16", "cpu") if rank.MOMENT_BYTES[kind] < now]
    for kind in kinds:
        for mode in modes:
            if (total := sized(recompute=mode, state=kind).total) <= memory:
                again = f" and trainer.recompute to {mode}" if mode != modes[0] else ""
                return [f"set trainer.optimizerState to {kind}{again} ({show_bytes(total)})"]
    return []


def _offloads(job: RLJob, sized: Callable[..., rank.TrainerPlan], memory: int, work: rank.RankWork) -> list[str]:
    """Frozen models that would make it fit from host memory."""
    fields = {"reference": "algorithm.kl.placement", "teacher": "algorithm.teacher.placement"}
    held = [name for name in _FROZEN if job.spec.is_rl and work[name] and name not in work["offloaded"]]
    fitting = [name for name in held if sized(offloaded=work["offloaded"] | {name}).total <= memory]
    return [f"set {fields[name]}: offloaded" for name in fitting]


def _shorter(job: RLJob, shape: ModelShape, memory: int, work: rank.RankWork) -> list[str]:
    """Shorter rows that fit."""
    trainer, fixed = job.spec.trainer, job.spec.supervised
    longest = rank.longest_that_fits(shape, memory, ranks=trainer.shards, **work)
    row = job.spec.rollout.max_sample_tokens if fixed is None else fixed.max_tokens
    if longest >= max(_LEAST_ROW, row):
        return [f"lower trainer.microBatchTokens to {longest // 64 * 64:,}"]
    if longest < _LEAST_ROW:
        return []
    field = "rollout.maxSampleTokens" if fixed is None else "training.maxTokens"
    return [f"lower {field} and trainer.microBatchTokens to {longest // 64 * 64:,}"]


def _more_ranks(job: RLJob, shape: ModelShape, plan: rank.TrainerPlan, memory: int, work: rank.RankWork) -> list[str]:
    """More ranks for a copy of the model that fit."""
    trainer = job.spec.trainer
    ranks, world = trainer.shards, trainer.world_size
    more = rank.fewest_ranks(shape, memory, tokens=plan.tokens, **work)
    if more is None or more <= ranks:
        return []
    if more <= world:
        most = next(n for n in range(world // more, 0, -1) if world % n == 0)
        return [f"lower trainer.mesh.replicate to {most}"]
    return [f"train on {more} GPUs (trainer.replicas {-(-more // trainer.gpus)})"]
