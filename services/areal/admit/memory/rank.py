"""Memory of a trainer's rank: lines that sum up, at the moment that needs most.

Owns the formulas of what stands beside the activations. States are sharded over the ranks of a replica (FSDP2),
embedding and head with their gradients are not while a backward pass runs. An estimate says so in its line. Pure.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypedDict, Unpack

from areal.admit.memory.shape import ModelShape
from areal.admit.memory.volume import ELEMENT, OptimizerState

# ---- Activation memory: bytes that autograd keeps a token of a micro-batch, by layer, in closed form
# Counted from what the modules of Hugging Face's Llama, Qwen2 and Qwen3 save for backward (RMSNorm in float32,
# SwiGLU, scaled dot product attention); a test compares with saved-tensor hooks. Pure.


Recompute = Literal["none", "selective", "full", "offload"]
Attention = Literal["dense", "varlen", "flex"]

_FLOAT = 4


def kept_by_a_block(shape: ModelShape, element: int, attention: Attention) -> int:
    """Bytes a token that one layer keeps.

    Args:
        element: bytes of a number in the forward pass: 2 for bfloat16, 4 for float32.
        attention: `dense` expands keys and values to all heads, because a mask rules out grouped heads.
    """
    hidden, queries, keys = shape.hidden, shape.queries, shape.keys
    # each norm keeps its input in float32, the reciprocal of its root mean square, what it normalised, and its output
    norms = 2 * (_FLOAT * hidden + _FLOAT + 2 * element * hidden)
    expanded = queries if attention == "dense" else keys
    heads = element * (2 * queries + 2 * expanded) + _FLOAT * shape.heads  # q, k, v, output; log-sum-exp a head
    if shape.head_norms:
        heads += (_FLOAT + element) * (queries + keys) + _FLOAT * (shape.heads + shape.kv_heads)
    return norms + heads + kept_by_the_inner(shape, element)


def kept_by_the_inner(shape: ModelShape, element: int) -> int:
    """Bytes a token that a layer's MLP keeps, or the experts that the token goes to, with their router."""
    if not shape.experts:
        return 4 * element * shape.intermediate  # SwiGLU: gate, its SiLU, up, their product
    router = (_FLOAT + element) * shape.experts + 4 * 8 * shape.chosen  # logits, probabilities; numbers and their order
    return element * shape.chosen * (2 * shape.hidden + 4 * shape.intermediate) + router  # a copy in, a copy out


def kept_outside(shape: ModelShape, element: int) -> int:
    """Bytes a token kept once: the last norm, the rotary angles, the token's id."""
    return _FLOAT * shape.hidden + _FLOAT + element * shape.hidden + 2 * element * shape.head_width + 8


def bytes_a_token(shape: ModelShape, element: int, attention: Attention, recompute: Recompute) -> int:
    """Bytes a token at the peak of a backward pass, without masks: what each layer keeps, and one layer made again."""
    block = kept_by_a_block(shape, element, attention)
    if recompute == "none":
        return shape.layers * block + kept_outside(shape, element)
    return shape.layers * kept_by_recompute(shape, element, recompute) + block + kept_outside(shape, element)


def kept_by_recompute(shape: ModelShape, element: int, recompute: Recompute) -> int:
    """Bytes a token that one layer keeps until its backward pass, when it is computed again there."""
    if recompute == "offload":
        return 0  # its input is in the host's memory
    kept = element * shape.hidden
    if recompute == "selective" and not shape.experts:
        # the products of keys, output and up, every second of seven; attention's output
        products = shape.keys + shape.hidden + shape.intermediate
        kept += element * (products + shape.queries) + _FLOAT * shape.heads
    return kept


def mask_bytes(shape: ModelShape, element: int, tokens: int, attention: Attention, recompute: Recompute) -> int:
    """Bytes of the dense mask, which each layer converts and keeps again; none without it."""
    if attention != "dense":
        return 0
    return (shape.layers if recompute == "none" else 1) * element * tokens * tokens


# ---- Memory of a trainer's rank: lines that sum up, at the moment that needs most


_WEIGHT_BYTES = 4  # a parameter's float32 master; its gradient takes as much again
MOMENT_BYTES = {"float32": 8, "bfloat16": 4, "cpu": 0}  # a parameter's two moments, where the master is
_FROZEN_BYTES = 4  # a parameter of a model that only infers: float32, whatever it computes in
_CHUNK_ELEMENTS = 1 << 25  # numbers of a chunk of logits, as the trainer cuts them
_LEAST_CHUNK = 128  # tokens
_CHUNK_BYTES = 10  # a number: logits and their gradient in float32, the gradient once more in the weights' precision
_FUSED_CHUNK_BYTES = 4  # the same where they are compiled: logits and their gradient, in the weights' precision
_CONTEXT_BYTES = 3 << 29  # estimate: CUDA context, NCCL's buffers, fragments
_HOST_STATE_BYTES = 12  # a parameter of `cpu`: a copy of the master, two moments


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
    layer, `context` times as many the tokens of each row. `state` is where the optimizers' moments are. With a `canary`
    the start model is held once more in float32 when the trainer starts. `card` is a GPU's memory in bytes, by which
    the output layer is cut; without one it is cut as on a CPU. `fused` says that what it does is compiled:
    neither a divergence from a teacher nor float32 logits.
    """

    critic: bool
    reference: bool
    teacher: ModelShape | None
    offloaded: frozenset[Literal["reference", "teacher"]]
    trained: int | None
    tensor: int
    context: int
    state: OptimizerState
    canary: bool
    card: int
    fused: bool


class RankWork(Beside):
    """How a rank passes a micro-batch, and what it holds beside the policy."""

    precision: str
    attention: Attention
    recompute: Recompute


def chunk_tokens(vocabulary: int, card: int) -> int:
    """Tokens of a chunk of logits, as the trainer cuts them."""
    least = max(_LEAST_CHUNK, _CHUNK_ELEMENTS // vocabulary)
    if not card:
        return least
    return max(least, min(4096, max(1024, card // 20 // (_CHUNK_BYTES * vocabulary) // 128 * 128)))


def _chunk_bytes(beside: Beside) -> int:
    """Of each number of a chunk of logits."""
    return _FUSED_CHUNK_BYTES if beside.get("fused") else _CHUNK_BYTES


def _idle_bytes(beside: Beside) -> int:
    """Bytes a trained parameter takes while another model's gradients are made, or none."""
    return _WEIGHT_BYTES + MOMENT_BYTES[beside.get("state", "float32")]


def _state_bytes(beside: Beside) -> int:
    """The same with its gradient."""
    return _idle_bytes(beside) + _WEIGHT_BYTES


def plan_trainer(shape: ModelShape, *, ranks: int, tokens: int, **work: Unpack[RankWork]) -> TrainerPlan:
    """The budget of one rank of the `ranks` that one copy of the model is sharded over, for a micro-batch of one row of
    `tokens`: of the moment that needs most.
    """
    away, precision = work.get("offloaded", frozenset()), work["precision"]
    here: RankWork = {**work, "reference": work.get("reference", False) and "reference" not in away}
    here["teacher"] = None if "teacher" in away else work.get("teacher")
    plans = [_updating(shape, ranks, tokens, here)]
    for name, model in _offloaded(shape, work):
        stays = shape if here["reference"] else here["teacher"]  # one of the two at most: the other is asked
        lines = _idle(shape, stays, ranks, precision, here)
        lines += _asking(name, model, here, ranks, tokens)
        plans.append(TrainerPlan(tuple(line for line in lines if line.size), tokens))
    if work.get("canary"):
        plans.append(plan_start(shape, ranks, tokens, precision, work))
    return max(plans, key=lambda plan: plan.total)


def plan_start(shape: ModelShape, ranks: int, tokens: int, precision: str, beside: Beside) -> TrainerPlan:
    """The budget of a rank while the canary is made: no moments and gradients yet, and the start model in float32."""
    trained = beside.get("trained")
    policy = shape.all_parameters * (_WEIGHT_BYTES if trained is None else ELEMENT[precision])
    parts = (
        ("the policy's share", policy // ranks),
        ("adapter", (trained or 0) * _WEIGHT_BYTES // ranks),
        ("the critic's share", (shape.value_model.parameters if beside.get("critic") else 0) * _WEIGHT_BYTES // ranks),
        ("the frozen models' shares", _frozen_parameters(shape, beside) * _FROZEN_BYTES // ranks),
        ("the start model's share in float32", shape.all_parameters * _FROZEN_BYTES // ranks),
        ("its embedding and head, gathered", 2 * (shape.root_gathered + shape.tower) * _FROZEN_BYTES),
        ("its layers, gathered", shape.part(beside.get("tensor", 1)).block_parameters * _FROZEN_BYTES),
        ("CUDA and NCCL (estimate)", _CONTEXT_BYTES),
    )
    return TrainerPlan(tuple(BudgetLine(what, size) for what, size in parts if size), tokens)


def _tied_bytes(shape: ModelShape, ranks: int) -> int:
    """The reduced gradient of a tied head, which lies beside the embedding's until the step."""
    return shape.vocabulary * shape.hidden * _WEIGHT_BYTES // ranks if shape.tied and not shape.scores else 0


def _frozen_parameters(shape: ModelShape, beside: Beside) -> int:
    """Of the frozen models that stay on the device."""
    away, teacher = beside.get("offloaded", frozenset()), beside.get("teacher")
    reference = beside.get("reference") and beside.get("trained") is None and "reference" not in away
    held = shape.all_parameters if reference else 0
    return held + (teacher.all_parameters if teacher is not None and "teacher" not in away else 0)


def host_bytes(shape: ModelShape, ranks: int, beside: Beside) -> int:
    """Host memory of one rank for what is offloaded."""
    return sum(model.all_parameters * _FROZEN_BYTES // ranks for _, model in _offloaded(shape, beside))


def host_state_bytes(shape: ModelShape, ranks: int, beside: Beside) -> int:
    """Host memory of one rank for optimizers' states that are there."""
    if beside.get("state", "float32") != "cpu":
        return 0
    trained = beside.get("trained")
    held = shape.parameters if trained is None else trained
    held += shape.value_model.parameters if beside.get("critic") else 0
    return held * _HOST_STATE_BYTES // ranks


def _updating(shape: ModelShape, ranks: int, tokens: int, work: RankWork) -> TrainerPlan:
    """The budget of a forward and backward pass, at its largest moment; nothing that is offloaded is on the device."""
    element, trained, teacher = ELEMENT[work["precision"]], work.get("trained"), work.get("teacher")
    reference = work.get("reference", False) and trained is None
    critic = shape.value_model if work.get("critic") else None
    critic_bytes = 0
    if critic is not None:
        critic_bytes = critic.parameters * (_idle_bytes(work) if trained is None else _state_bytes(work))
        critic_bytes += critic.tower * _WEIGHT_BYTES
    held = (
        (
            "weights, optimizer and gradients of the rank's share",
            shape.parameters * _state_bytes(work) // ranks if trained is None else 0,
        ),
        ("frozen weights of the rank's share", shape.all_parameters * element // ranks if trained is not None else 0),
        ("the images' tower: the rank's share", shape.tower * _WEIGHT_BYTES // ranks if trained is None else 0),
        ("pixels, where all tokens are of images (estimate)", tokens * shape.pixels * _FLOAT),
        ("adapter, its optimizer and gradients", (trained or 0) * _state_bytes(work) // ranks),
        ("the critic's share with its optimizer", critic_bytes // ranks),
        ("a tied head's gradient", _tied_bytes(shape, ranks) if trained is None else 0),
        ("the KL reference's share", shape.all_parameters * _FROZEN_BYTES // ranks if reference else 0),
        ("the teacher's share", teacher.all_parameters * _FROZEN_BYTES // ranks if teacher else 0),
        ("the teacher's embedding and head, whole", teacher.root_gathered * element if teacher else 0),
    )
    how = (ranks, tokens, element, work["attention"], work["recompute"], work)
    passes = [_RankPass(shape, *how, trains=trained is None)]
    if critic is not None:
        passes.append(_RankPass(critic, *how, trains=True))
    parts = max((moment for each in passes for moment in each.moments()), key=lambda lines: sum(n for _, n in lines))
    parts = (*held, *parts, ("CUDA and NCCL (estimate)", _CONTEXT_BYTES))
    return TrainerPlan(tuple(BudgetLine(what, size) for what, size in parts if size), tokens)


_Lines = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _RankPass:
    """One model's forward and backward pass on a rank: what its moments need beside what is held."""

    shape: ModelShape
    ranks: int
    tokens: int
    element: int
    attention: Attention
    recompute: Recompute
    beside: Beside
    trains: bool  # all weights, not an adapter's

    def moments(self) -> list[_Lines]:
        """The moments that may need most."""
        moments = [self._gathering(), *(self._sparse() if self.shape.experts else [self._layer()])]
        moments += [] if self.shape.scores else self._head()
        tower = ("the images' tower, gathered", self.shape.tower * self.element)
        return [(*moment, tower) for moment in moments] + ([self._root()] if self.trains else [])

    @property
    def _own(self) -> int:
        """Tokens of a row that this rank computes."""
        return -(-self.tokens // self.beside.get("context", 1))

    @property
    def _part(self) -> ModelShape:
        return self.shape.part(self.beside.get("tensor", 1))

    @property
    def _matrix(self) -> int:
        """Numbers of the output layer."""
        return 0 if self.shape.scores else self.shape.vocabulary * self.shape.hidden

    @property
    def _kept(self) -> int:
        """Activations, with a layer that is made again."""
        return self._own * bytes_a_token(self._part, self.element, self.attention, self.recompute)

    @property
    def _masks(self) -> int:
        return mask_bytes(self.shape, self.element, self.tokens, self.attention, self.recompute)

    def _gathering(self) -> _Lines:
        """The root's all-gather: its buffer stays until the first layer's is there."""
        root, layer = self.shape.root_gathered * self.element, self._part.block_parameters * self.element
        tower = self.shape.tower * self.element
        buffers = (root + tower, layer) if self.ranks > 1 else (0, 0)  # alone, a rank has none
        return (
            ("embedding and head, gathered", root),
            ("their all-gather's buffer", buffers[0]),
            ("a layer, gathered, and its buffer", layer + buffers[1]),
        )

    def _head(self) -> list[_Lines]:
        """The backward pass of the output layer, chunk by chunk: a chunk's logits as their gradient is made, and then
        what it adds to the layer's own, which is float32."""
        chunk = min(self._own, chunk_tokens(self.shape.vocabulary, self.beside.get("card", 0)))
        again = 0 if self.recompute == "none" else kept_by_a_block(self._part, self.element, self.attention)
        matrix, logits = self._matrix if self.trains else 0, chunk * self.shape.vocabulary
        return [
            (
                ("activations", self._kept - self._own * again),
                ("attention masks", self._masks),
                ("hidden states and their gradient", 2 * self._own * self.shape.hidden * self.element),
                ("embedding and head, gathered", self.shape.root_gathered * self.element),
                ("the head's gradient in float32", matrix * _WEIGHT_BYTES),
                ("what a chunk adds to it", added * self.element),
                ("a layer, gathered", self._part.block_parameters * self.element),
                ("a chunk of logits", logits * each),
            )
            for added, each in ((0, _chunk_bytes(self.beside)), (matrix, self.element))
        ]

    def _layer(self) -> _Lines:
        """The backward pass of a layer, made again: its MLP comes first, while the gradients of the layer before are
        reduced in float32 and the next layer is gathered. Of adapters, units of their own, that is adapters alone.
        """
        part, element = self._part, self.element
        root = self.shape.root_gathered + (self._matrix if self.trains else 0)
        gathered = 2 if self.trains and self.shape.layers > 2 else 1
        layers = part.block_parameters * (gathered * element + (_WEIGHT_BYTES if self.trains else 0))
        weight = part.hidden * part.intermediate * element if self.trains else 0
        return (
            ("activations", self._kept),
            ("attention masks", self._masks),
            ("embedding and head, gathered, and the head's gradient", root * element),
            ("layers gathered, one's gradients in float32", layers),
            ("gradients inside a layer", self._own * part.intermediate * element + weight),
        )

    def _sparse(self) -> list[_Lines]:
        """The backward pass of a layer with experts, a unit of their own: with their gradients as they are made, and
        then, without their activations, reduced in float32."""
        part, element = self._part, self.element
        root = (self.shape.root_gathered + (self._matrix if self.trains else 0)) * element
        inner = self._own * kept_by_the_inner(part, element)
        layer, experts = part.block_parameters * element, part.inner_parameters if self.trains else 0
        others = 2 * (part.block_parameters - part.inner_parameters) * (element + (_WEIGHT_BYTES if self.trains else 0))
        found = (
            ("made", self._kept, experts * element, others + self._own * part.hidden * element),
            ("reduced", self._kept - inner, experts * _WEIGHT_BYTES, 0),
        )
        return [
            (
                ("activations", kept),
                ("attention masks", self._masks),
                ("embedding and head, gathered, and the head's gradient", root),
                ("a layer, gathered", layer),
                (f"gradients of its experts as they are {how}", gradients),
                ("attention of the layers beside it, and gradients inside", beside),
            )
            for how, kept, gradients, beside in found
        ]

    def _root(self) -> _Lines:
        """The reduction of embedding's and head's gradients at the end of a pass, beside those of the passes before."""
        reduced = max(self.element, _WEIGHT_BYTES // self.ranks) + _WEIGHT_BYTES
        return (("gradients of embedding and head", self.shape.root_gathered * reduced),)


def _offloaded(shape: ModelShape, beside: Beside) -> list[tuple[str, ModelShape]]:
    away, teacher = beside.get("offloaded", frozenset()), beside.get("teacher")
    reference = beside.get("reference", False) and beside.get("trained") is None
    found = [("reference", shape)] if reference and "reference" in away else []
    return found + ([("teacher", teacher)] if teacher is not None and "teacher" in away else [])


def idle_lines(shape: ModelShape, ranks: int, precision: str, beside: Beside) -> list[BudgetLine]:
    """What a rank's device holds between two steps."""
    lines = _idle(shape, None, ranks, precision, beside)
    return [*lines, BudgetLine("the frozen models' shares", _frozen_parameters(shape, beside) * _FROZEN_BYTES // ranks)]


def _idle(shape: ModelShape, stays: ModelShape | None, ranks: int, precision: str, beside: Beside) -> list[BudgetLine]:
    """What a rank holds between two updates: states without gradients, and the frozen model that stays."""
    trained = beside.get("trained")
    policy = shape.parameters * (ELEMENT[precision] if trained is not None else _idle_bytes(beside))
    policy += shape.tower * (ELEMENT[precision] if trained is not None else _WEIGHT_BYTES)
    critic = shape.value_model.parameters if beside.get("critic") else 0
    frozen = stays.all_parameters if stays is not None else 0
    return [
        BudgetLine("the rank's share of the policy, without gradients", policy // ranks),
        BudgetLine("adapter and its optimizer", (trained or 0) * _idle_bytes(beside) // ranks),
        BudgetLine("the critic's share with its optimizer", critic * _idle_bytes(beside) // ranks),
        BudgetLine("the share of the other frozen model", frozen * _FROZEN_BYTES // ranks),
    ]


def _asking(name: str, model: ModelShape, work: RankWork, ranks: int, tokens: int) -> list[BudgetLine]:
    """What a forward pass of a frozen model needs beside the states of others; of its activations, an upper bound."""
    element, part, attention = ELEMENT[work["precision"]], model.part(work.get("tensor", 1)), work["attention"]
    own = -(-tokens // work.get("context", 1))
    chunk = min(own, chunk_tokens(model.vocabulary, work.get("card", 0)))
    return [
        BudgetLine(f"the {name}'s share while it is asked", model.all_parameters * _FROZEN_BYTES // ranks),
        BudgetLine(f"the {name}'s embedding and head, whole", (model.root_gathered + model.tower) * element),
        BudgetLine(f"the {name}'s layers, gathered", 2 * part.block_parameters * element),
        BudgetLine("activations", own * bytes_a_token(part, element, attention, "full")),
        BudgetLine("attention masks", mask_bytes(model, element, tokens, attention, "full")),
        BudgetLine("a chunk of logits", chunk * model.vocabulary * _chunk_bytes(work)),
        BudgetLine("CUDA and NCCL (estimate)", _CONTEXT_BYTES),
    ]


def longest_that_fits(shape: ModelShape, memory: int, *, ranks: int, **work: Unpack[RankWork]) -> int:
    """Most tokens of a row that one rank has memory for; 0 when not even the states fit."""
    made = partial(plan_trainer, shape, ranks=ranks, **work)
    low, high = 0, 1 << 20
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if made(tokens=middle).total <= memory else (low, middle - 1)
    return low


def fewest_ranks(shape: ModelShape, memory: int, *, tokens: int, **work: Unpack[RankWork]) -> int | None:
    """The smallest power of two of ranks that has memory for rows of `tokens`; None where more ranks don't help."""
    made = partial(plan_trainer, shape, tokens=tokens, **work)
    least = work.get("tensor", 1) * work.get("context", 1)
    return next(
        (1 << power for power in range(13) if least <= 1 << power and made(ranks=1 << power).total <= memory), None
    )
