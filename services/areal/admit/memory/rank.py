"""Memory of a trainer's rank: lines that sum up, and what doesn't fit, with the knobs that would make it fit.

Owns the formulas of what stands beside the activations. States are sharded over the ranks of a replica (FSDP2),
embedding and head with their gradients are not while a backward pass runs. An estimate says so in its line. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypedDict, Unpack

from areal.admit.memory.activations import Attention, Recompute, bytes_a_token, mask_bytes
from areal.admit.memory.shape import ModelShape
from areal.admit.memory.volume import ELEMENT, OptimizerState
from areal.dataflow.builtin import needs_of
from areal.spec import Finding, RLJob, Severity
from areal.spec.quantity import show_bytes
from areal.spec.resolved_algorithm import has_critic, has_reference

Said = tuple[list[Finding], list[tuple[str, str]]]
"""What doesn't fit, and lines for people: a subject and a sentence each."""

_WEIGHT_BYTES = 4  # a parameter's float32 master; its gradient takes as much again
_MOMENT_BYTES = {"float32": 8, "bfloat16": 4, "cpu": 0}  # a parameter's two moments, where the master is
_FROZEN_BYTES = 4  # a parameter of a model that only infers: float32, whatever it computes in
_CHUNK_ELEMENTS = 1 << 25  # numbers of a chunk of logits, as the trainer cuts them
_LEAST_CHUNK = 128  # tokens
_CHUNK_BYTES = 10  # a number: logits and their gradient in float32, the gradient once more in the weights' precision
_CONTEXT_BYTES = 3 << 29  # estimate: CUDA context, NCCL's buffers, fragments
_HOST_STATE_BYTES = 12  # a parameter of `cpu`: a copy of the master, two moments
_LEAST_ROW = 256  # tokens: shorter rows are no advice
_FROZEN: tuple[Literal["reference"], Literal["teacher"]] = ("reference", "teacher")


def _beside(job: RLJob, trained: int | None, teacher: ModelShape | None) -> Beside:
    """What a rank holds beside the policy, as the trainer loads it."""
    served = job.spec.is_rl and job.spec.algorithm.teacher is not None and job.spec.algorithm.teacher.endpoint
    return {
        "critic": has_critic(job.spec),
        "reference": has_reference(job.spec),
        "teacher": None if served else teacher,
        "offloaded": _placed_in_host(job),
        "trained": trained,
        "tensor": job.spec.trainer.mesh.tensor,
        "context": job.spec.trainer.mesh.context,
        "state": job.spec.trainer.optimizer_state,
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
    tokens, beside = trainer.micro_batch_tokens, _beside(job, trained, teacher)
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


@dataclass(frozen=True)
class BudgetLine:
    """One part of a budget."""

    what: str
    size: int  # bytes


@dataclass(frozen=True)
class TrainerPlan:
    """What one rank needs at its peak: in a backward pass, or while an offloaded model is asked."""

    lines: tuple[BudgetLine, ...]
    tokens: int  # of the longest micro-batch

    @property
    def total(self) -> int:
        return sum(line.size for line in self.lines)


class Beside(TypedDict, total=False):
    """What else a rank holds, and how the policy is trained.

    A `critic` is a value model of the policy's size with an optimizer of its own; the two are updated one after the
    other. A `reference` is the start model once more, frozen. `trained` is how many parameters an adapter has: the
    policy's own are frozen then, in the precision of the forward pass, and are the reference. A `teacher` is frozen;
    its layers pass one by one, before the student's. What is `offloaded` is in host memory during a backward pass, and
    on the device beside the policy's states, without gradients, while it is asked. `tensor` ranks split each
    layer, `context` times as many the tokens of each row. `state` is where the optimizers' moments are.
    """

    critic: bool
    reference: bool
    teacher: ModelShape | None
    offloaded: frozenset[Literal["reference", "teacher"]]
    trained: int | None
    tensor: int
    context: int
    state: OptimizerState


def _idle_bytes(beside: Beside) -> int:
    """Bytes a trained parameter takes while another model's gradients are made, or none."""
    return _WEIGHT_BYTES + _MOMENT_BYTES[beside.get("state", "float32")]


def _state_bytes(beside: Beside) -> int:
    """The same with its gradient."""
    return _idle_bytes(beside) + _WEIGHT_BYTES


def plan_trainer(
    shape: ModelShape,
    *,
    ranks: int,
    tokens: int,
    precision: str,
    attention: Attention,
    recompute: Recompute,
    **beside: Unpack[Beside],
) -> TrainerPlan:
    """The budget of one rank of the `ranks` that one copy of the model is sharded over, for a micro-batch of one row of
    `tokens`: of the moment that needs most.
    """
    away = beside.get("offloaded", frozenset())
    here: Beside = {**beside, "reference": beside.get("reference", False) and "reference" not in away}
    here["teacher"] = None if "teacher" in away else beside.get("teacher")
    plans = [
        _updating(
            shape, ranks=ranks, tokens=tokens, precision=precision, attention=attention, recompute=recompute, **here
        )
    ]
    for name, model in _offloaded(shape, beside):
        stays = shape if here["reference"] else here["teacher"]  # one of the two at most: the other is asked
        lines = _idle(shape, stays, ranks, precision, here)
        lines += _asking(name, model, here, ranks=ranks, tokens=tokens, precision=precision, attention=attention)
        plans.append(TrainerPlan(tuple(line for line in lines if line.size), tokens))
    return max(plans, key=lambda plan: plan.total)


def host_bytes(shape: ModelShape, ranks: int, beside: Beside) -> int:
    """Host memory of one rank for what is offloaded."""
    return sum(model.parameters * _FROZEN_BYTES // ranks for _, model in _offloaded(shape, beside))


def host_state_bytes(shape: ModelShape, ranks: int, beside: Beside) -> int:
    """Host memory of one rank for optimizers' states that are there."""
    if beside.get("state", "float32") != "cpu":
        return 0
    trained = beside.get("trained")
    held = shape.parameters if trained is None else trained
    held += shape.value_model.parameters if beside.get("critic") else 0
    return held * _HOST_STATE_BYTES // ranks


def _updating(
    shape: ModelShape,
    *,
    ranks: int,
    tokens: int,
    precision: str,
    attention: Attention,
    recompute: Recompute,
    **beside: Unpack[Beside],
) -> TrainerPlan:
    """The budget of a backward pass; nothing that is offloaded is on the device."""
    element, part = ELEMENT[precision], shape.part(beside.get("tensor", 1))
    trained, teacher = beside.get("trained"), beside.get("teacher")
    own = -(-tokens // beside.get("context", 1))  # tokens of a row that this rank computes
    critic = shape.value_model if beside.get("critic") else None
    reference = beside.get("reference", False) and trained is None
    gradient = 4 if trained is None else 0  # bytes of a number's
    root = shape.root_parameters * (element + gradient)
    alone = ranks == beside.get("tensor", 1)  # what is never sharded stays gathered between passes
    gathered = shape.layers if alone else 2
    layers = part.block_parameters * (gathered * element + gradient)
    critic_bytes = 0
    if critic is not None:
        critic_bytes = critic.parameters * (_idle_bytes(beside) if trained is None else _state_bytes(beside))
        root = max(root, critic.root_parameters * (element + 4))
        layers = part.block_parameters * (gathered * element + 4)
    chunk = 0 if shape.scores else min(own, max(_LEAST_CHUNK, _CHUNK_ELEMENTS // shape.vocabulary))
    parts = (
        (
            "weights, optimizer and gradients of the rank's share",
            shape.parameters * _state_bytes(beside) // ranks if trained is None else 0,
        ),
        ("frozen weights of the rank's share", shape.parameters * element // ranks if trained is not None else 0),
        ("adapter, its optimizer and gradients", (trained or 0) * _state_bytes(beside) // ranks),
        ("the critic's share with its optimizer", critic_bytes // ranks),
        ("the KL reference's share", shape.parameters * _FROZEN_BYTES // ranks if reference else 0),
        ("the teacher's share", teacher.parameters * _FROZEN_BYTES // ranks if teacher else 0),
        ("the teacher's embedding and head, whole", teacher.root_parameters * element if teacher else 0),
        (
            "the teacher's layers, gathered",
            teacher.layers * teacher.block_parameters * element if teacher and alone else 0,
        ),
        ("activations", own * bytes_a_token(part, element, attention, recompute)),
        ("attention masks", mask_bytes(shape, element, tokens, attention, recompute)),
        ("embedding and head with their gradients, whole", root),
        ("layers gathered, one's gradient", layers),
        ("a chunk of logits", chunk * shape.vocabulary * _CHUNK_BYTES),
        ("CUDA and NCCL (estimate)", _CONTEXT_BYTES),
    )
    return TrainerPlan(tuple(BudgetLine(what, size) for what, size in parts if size), tokens)


def _offloaded(shape: ModelShape, beside: Beside) -> list[tuple[str, ModelShape]]:
    away, teacher = beside.get("offloaded", frozenset()), beside.get("teacher")
    reference = beside.get("reference", False) and beside.get("trained") is None
    found = [("reference", shape)] if reference and "reference" in away else []
    return found + ([("teacher", teacher)] if teacher is not None and "teacher" in away else [])


def _idle(shape: ModelShape, stays: ModelShape | None, ranks: int, precision: str, beside: Beside) -> list[BudgetLine]:
    """What a rank holds between two updates: states without gradients, and the frozen model that stays."""
    trained = beside.get("trained")
    policy = shape.parameters * (ELEMENT[precision] if trained is not None else _idle_bytes(beside))
    critic = shape.value_model.parameters if beside.get("critic") else 0
    frozen = stays.parameters if stays is not None else 0
    return [
        BudgetLine("the rank's share of the policy, without gradients", policy // ranks),
        BudgetLine("adapter and its optimizer", (trained or 0) * _idle_bytes(beside) // ranks),
        BudgetLine("the critic's share with its optimizer", critic * _idle_bytes(beside) // ranks),
        BudgetLine("the share of the other frozen model", frozen * _FROZEN_BYTES // ranks),
    ]


def _asking(
    name: str, model: ModelShape, beside: Beside, *, ranks: int, tokens: int, precision: str, attention: Attention
) -> list[BudgetLine]:
    """What a forward pass of a frozen model needs beside the states of others; of its activations, an upper bound."""
    element, part = ELEMENT[precision], model.part(beside.get("tensor", 1))
    own = -(-tokens // beside.get("context", 1))
    gathered = model.layers if ranks == beside.get("tensor", 1) else 2
    chunk = min(own, max(_LEAST_CHUNK, _CHUNK_ELEMENTS // model.vocabulary))
    return [
        BudgetLine(f"the {name}'s share while it is asked", model.parameters * _FROZEN_BYTES // ranks),
        BudgetLine(f"the {name}'s embedding and head, whole", model.root_parameters * element),
        BudgetLine(f"the {name}'s layers, gathered", gathered * part.block_parameters * element),
        BudgetLine("activations", own * bytes_a_token(part, element, attention, "full")),
        BudgetLine("attention masks", mask_bytes(model, element, tokens, attention, "full")),
        BudgetLine("a chunk of logits", chunk * model.vocabulary * _CHUNK_BYTES),
        BudgetLine("CUDA and NCCL (estimate)", _CONTEXT_BYTES),
    ]


def longest_that_fits(
    shape: ModelShape,
    memory: int,
    *,
    ranks: int,
    precision: str,
    attention: Attention,
    recompute: Recompute,
    **beside: Unpack[Beside],
) -> int:
    """Most tokens of a row that one rank has memory for; 0 when not even the states fit."""
    made = partial(
        plan_trainer, shape, ranks=ranks, precision=precision, attention=attention, recompute=recompute, **beside
    )
    low, high = 0, 1 << 20
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if made(tokens=middle).total <= memory else (low, middle - 1)
    return low


def fewest_ranks(
    shape: ModelShape,
    memory: int,
    *,
    tokens: int,
    precision: str,
    attention: Attention,
    recompute: Recompute,
    **beside: Unpack[Beside],
) -> int | None:
    """The smallest power of two of ranks that has memory for rows of `tokens`; None where more ranks don't help."""
    made = partial(
        plan_trainer, shape, tokens=tokens, precision=precision, attention=attention, recompute=recompute, **beside
    )
    least = beside.get("tensor", 1) * beside.get("context", 1)
    return next(
        (1 << power for power in range(13) if least <= 1 << power and made(ranks=1 << power).total <= memory), None
    )
