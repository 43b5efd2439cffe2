"""Memory budget of a trainer's rank, of a generation server's GPU and of the run's volume: lines that sum up.

Owns the formulas of what stands beside the activations. States are sharded over the ranks of a replica (FSDP2),
embedding and head with their gradients are not while a backward pass runs. An estimate says so in its line. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypedDict, Unpack

from areal.admit.memory.activations import Attention, Recompute, bytes_a_token, mask_bytes
from areal.admit.memory.shape import ModelShape

_WEIGHT_BYTES = 4  # a parameter's float32 master; its gradient takes as much again
_MOMENT_BYTES = {"float32": 8, "bfloat16": 4, "cpu": 0}  # a parameter's two moments, where the master is
_FROZEN_BYTES = 4  # a parameter of a model that only infers: float32, whatever it computes in
_CHUNK_ELEMENTS = 1 << 25  # numbers of a chunk of logits, as the trainer cuts them
_LEAST_CHUNK = 128  # tokens
_CHUNK_BYTES = 10  # a number: logits and their gradient in float32, the gradient once more in the weights' precision
_CONTEXT_BYTES = 3 << 29  # estimate: CUDA context, NCCL's buffers, fragments
_SGLANG_SHARE = 0.85  # estimate: of memory for weights and cache where the job names no share
_CHECKPOINT_BYTES = {"float32": 12, "bfloat16": 8, "cpu": 12}  # a parameter: float32 weights, two moments
_HOST_STATE_BYTES = 12  # a parameter of `cpu`: a copy of the master, two moments
VERSIONS_KEPT = 3  # published weights: the newest, the one before, the one being written

OptimizerState = Literal["float32", "bfloat16", "cpu"]

_ELEMENT = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Line:
    """One part of a budget."""

    what: str
    size: int  # bytes


@dataclass(frozen=True)
class TrainerPlan:
    """What one rank needs at its peak: in a backward pass, or while an offloaded model is asked."""

    lines: tuple[Line, ...]
    tokens: int  # of the longest micro-batch

    @property
    def total(self) -> int:
        return sum(line.size for line in self.lines)


@dataclass(frozen=True)
class ServerPlan:
    """What one GPU of a generation server holds. `cache_tokens` is of the whole server."""

    weights: int  # bytes a GPU
    room: int  # bytes a GPU for weights and cache
    cache_tokens: int

    @property
    def fits(self) -> bool:
        return self.cache_tokens > 0


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
    element, part = _ELEMENT[precision], shape.part(beside.get("tensor", 1))
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
    return TrainerPlan(tuple(Line(what, size) for what, size in parts if size), tokens)


def _offloaded(shape: ModelShape, beside: Beside) -> list[tuple[str, ModelShape]]:
    away, teacher = beside.get("offloaded", frozenset()), beside.get("teacher")
    reference = beside.get("reference", False) and beside.get("trained") is None
    found = [("reference", shape)] if reference and "reference" in away else []
    return found + ([("teacher", teacher)] if teacher is not None and "teacher" in away else [])


def _idle(shape: ModelShape, stays: ModelShape | None, ranks: int, precision: str, beside: Beside) -> list[Line]:
    """What a rank holds between two updates: states without gradients, and the frozen model that stays."""
    trained = beside.get("trained")
    policy = shape.parameters * (_ELEMENT[precision] if trained is not None else _idle_bytes(beside))
    critic = shape.value_model.parameters if beside.get("critic") else 0
    frozen = stays.parameters if stays is not None else 0
    return [
        Line("the rank's share of the policy, without gradients", policy // ranks),
        Line("adapter and its optimizer", (trained or 0) * _idle_bytes(beside) // ranks),
        Line("the critic's share with its optimizer", critic * _idle_bytes(beside) // ranks),
        Line("the share of the other frozen model", frozen * _FROZEN_BYTES // ranks),
    ]


def _asking(
    name: str, model: ModelShape, beside: Beside, *, ranks: int, tokens: int, precision: str, attention: Attention
) -> list[Line]:
    """What a forward pass of a frozen model needs beside the states of others; of its activations, an upper bound."""
    element, part = _ELEMENT[precision], model.part(beside.get("tensor", 1))
    own = -(-tokens // beside.get("context", 1))
    gathered = model.layers if ranks == beside.get("tensor", 1) else 2
    chunk = min(own, max(_LEAST_CHUNK, _CHUNK_ELEMENTS // model.vocabulary))
    return [
        Line(f"the {name}'s share while it is asked", model.parameters * _FROZEN_BYTES // ranks),
        Line(f"the {name}'s embedding and head, whole", model.root_parameters * element),
        Line(f"the {name}'s layers, gathered", gathered * part.block_parameters * element),
        Line("activations", own * bytes_a_token(part, element, attention, "full")),
        Line("attention masks", mask_bytes(model, element, tokens, attention, "full")),
        Line("a chunk of logits", chunk * model.vocabulary * _CHUNK_BYTES),
        Line("CUDA and NCCL (estimate)", _CONTEXT_BYTES),
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


def plan_server(shape: ModelShape, memory: int, *, parts: int, dtype: str, share: float | None) -> ServerPlan:
    """The budget of a server whose model is split into `parts`, one a GPU of `memory` bytes."""
    element = _ELEMENT[dtype]
    weights = shape.parameters * element // parts
    room = int(memory * (share or _SGLANG_SHARE))
    return ServerPlan(weights, room, tokens_in(shape, max(0, room - weights) * parts, dtype))


def tokens_in(shape: ModelShape, cache_bytes: int, dtype: str) -> int:
    """Tokens whose keys and values fit into so many bytes."""
    return cache_bytes // (2 * shape.layers * shape.keys * _ELEMENT[dtype])


def checkpoint_bytes(parameters: int, state: OptimizerState) -> int:
    """What one checkpoint of so many trained parameters takes."""
    return parameters * _CHECKPOINT_BYTES[state]


def disk_bytes(
    parameters: int,
    *,
    checkpoints: int,
    dtype: str,
    models: int = 1,
    trained: int | None = None,
    exports: int = 0,
    state: OptimizerState = "float32",
) -> int:
    """What a run's checkpoints, published weights and exported models take at most.

    Args:
        exports: models in exports/, each whole also where an adapter is trained.
        checkpoints: how many are kept; one more is there while it is written.
        models: how many of them are in a checkpoint: two with a critic.
        trained: parameters of an adapter, saved and published instead of the policy's.
        state: what the optimizers' moments are in.
    """
    policy = parameters if trained is None else trained
    saved = policy + parameters * (models - 1)
    published = policy * VERSIONS_KEPT + parameters * exports
    return checkpoint_bytes(saved, state) * (checkpoints + 1) + published * _ELEMENT[dtype]
