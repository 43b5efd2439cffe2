"""AdamW's moments and its update of local tensors: in float32, in bfloat16 with stochastic rounding, or CPU offload.

Owns where the two moments are and in what precision. Weights are float32 in each (master weights), and a step is the
same fused kernel, so that kinds differ by rounding alone, or not at all. Knows nothing of ranks.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from areal.spec.training import OptimizerState
from torch import Tensor
from torch.optim.adamw import adamw

from areal_trainer.engine.host_copy import HostSlab, TensorSpec, specs_of

PIECE = 1 << 24  # numbers that are converted or carried to the host at a time

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class AdamWOptions:
    """Hyperparameters of AdamW, of gradient clipping, and where the moments are."""

    betas: tuple[float, float] = (0.9, 0.99)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    state: OptimizerState = "float32"


@dataclass(frozen=True)
class _AdamPiece:
    """Some numbers of one tensor."""

    name: str
    start: int
    stop: int

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """These numbers, sharing memory."""
        return tensors[self.name].view(-1)[self.start : self.stop]

    @property
    def size(self) -> int:
        return self.stop - self.start


class AdamState:
    """Moments in float32, where the parameters are; made when they are first asked for."""

    _dtype = torch.float32

    def __init__(self, parameters: Mapping[str, Tensor], decays: Mapping[str, bool], options: AdamWOptions) -> None:
        self.updates = 0  # made so far; bias correction depends on it
        self._parameters = parameters
        self._decays = decays
        self._options = options
        self._moments: dict[str, dict[str, Tensor]] = {}

    def moments(self, name: str) -> dict[str, Tensor]:
        """The two moments of a parameter."""
        if name not in self._moments:
            self._moments[name] = {moment: self.empty(self._parameters[name]) for moment in MOMENTS}
        return self._moments[name]

    def empty(self, parameter: Tensor) -> Tensor:
        """Zeros for a moment of a parameter."""
        return torch.zeros_like(parameter, dtype=self._dtype)

    def step(self, gradients: Mapping[str, Tensor], learning_rate: float) -> None:
        """Update every parameter by its gradient."""
        firsts, seconds = self._by_moment()
        for decays in (True, False):
            names = [name for name in self._parameters if self._decays[name] == decays]
            self._update(*([of[name] for name in names] for of in (self._parameters, gradients, firsts, seconds)),
                         decays=decays, learning_rate=learning_rate)  # fmt: skip
        self.updates += 1

    def restored(self, updates: int) -> None:
        """Parameters and moments were filled from a checkpoint."""
        self.updates = updates

    def _by_moment(self) -> tuple[dict[str, Tensor], ...]:
        return tuple({name: self.moments(name)[moment] for name in self._parameters} for moment in MOMENTS)

    def _update(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        firsts: list[Tensor],
        seconds: list[Tensor],
        *,
        decays: bool,
        learning_rate: float,
    ) -> None:
        if not parameters:
            return
        counts = torch.full((len(parameters),), float(self.updates), device=parameters[0].device)
        options = self._options
        adamw(
            parameters, gradients, firsts, seconds, [], list(counts.unbind()), fused=True, amsgrad=False,
            beta1=options.betas[0], beta2=options.betas[1], lr=learning_rate, eps=options.epsilon,
            weight_decay=options.weight_decay if decays else 0.0, maximize=False,
        )  # fmt: skip

    def _pieces(self) -> Iterator[_AdamPiece]:
        for name, tensor in self._parameters.items():
            for start in range(0, tensor.numel(), PIECE):
                yield _AdamPiece(name, start, min(start + PIECE, tensor.numel()))


class Bfloat16AdamState(AdamState):
    """Moments in bfloat16, rounded stochastically: to nearest, a second moment whose steps are 1 % would stand still.

    The noise follows from a parameter's name and the number of the update, so a resumed run rounds as one that was
    never interrupted, and ranks that hold the same part stay equal.
    """

    _dtype = torch.bfloat16

    def step(self, gradients: Mapping[str, Tensor], learning_rate: float) -> None:
        firsts, seconds = self._by_moment()
        for piece in self._pieces():
            parameter = piece.of(self._parameters)
            kept = [piece.of(firsts), piece.of(seconds)]
            exact = [moment.float() for moment in kept]
            self._update(
                [parameter], [piece.of(gradients)], [exact[0]], [exact[1]],
                decays=self._decays[piece.name], learning_rate=learning_rate,
            )  # fmt: skip
            noise = torch.Generator(parameter.device).manual_seed(self._seed(piece))
            for moment, value in zip(kept, exact, strict=True):
                moment.copy_(rounded_stochastically(value, noise))
        self.updates += 1

    def _seed(self, piece: _AdamPiece) -> int:
        told = hashlib.sha256(f"{self.updates} {piece.name} {piece.start}".encode()).digest()
        return int.from_bytes(told[:8], "little") >> 1


class HostAdamState(AdamState):
    """Moments, and a copy of the weights, in host memory, where the update is made.

    Gradients come in buckets, the next one while the one before is used; weights go back as they are ready.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decays: Mapping[str, bool], options: AdamWOptions) -> None:
        super().__init__(parameters, decays, options)
        self._device = next((tensor.device for tensor in parameters.values()), torch.device("cpu"))
        self._pinned = self._device.type == "cuda"
        self._weights: Mapping[str, Tensor] = {}
        self._slab: HostSlab | None = None
        self._buckets: list[list[_AdamPiece]] = []
        self._arriving: list[Tensor] = []  # two buckets of gradients

    def empty(self, parameter: Tensor) -> Tensor:
        return torch.zeros(parameter.shape, dtype=self._dtype)

    def step(self, gradients: Mapping[str, Tensor], learning_rate: float) -> None:
        if not self._weights:
            self._copy_weights()
        firsts, seconds = self._by_moment()
        coming = self._fetch(0, gradients)
        for number, bucket in enumerate(self._buckets):
            here, arrived = coming
            coming = self._fetch(number + 1, gradients)
            if arrived is not None:
                arrived.synchronize()
            for decays in (True, False):
                chosen = [(piece, gradient) for piece, gradient in here if self._decays[piece.name] == decays]
                self._update(
                    [piece.of(self._weights) for piece, _ in chosen], [gradient for _, gradient in chosen],
                    [piece.of(firsts) for piece, _ in chosen], [piece.of(seconds) for piece, _ in chosen],
                    decays=decays, learning_rate=learning_rate,
                )  # fmt: skip
            for piece in bucket:
                piece.of(self._parameters).copy_(piece.of(self._weights), non_blocking=self._pinned)
        self.updates += 1

    def restored(self, updates: int) -> None:
        super().restored(updates)
        self._weights = {}  # the parameters are others now

    def _copy_weights(self) -> None:
        if self._slab is None:
            self._buckets = list(_filled(self._pieces()))
            size = max((sum(piece.size for piece in bucket) for bucket in self._buckets), default=0)
            arriving = {f"gradients {number}": TensorSpec((size,), torch.float32) for number in range(2)}
            held = specs_of(self._parameters.items())
            self._slab = HostSlab("the optimizer's weights", {**held, **arriving}, self._device)
            self._arriving = [self._slab.views[name] for name in arriving]
        self._slab.fill(self._parameters.items())
        self._weights = self._slab.views

    def _fetch(
        self, number: int, gradients: Mapping[str, Tensor]
    ) -> tuple[list[tuple[_AdamPiece, Tensor]], torch.cuda.Event | None]:
        """Begin to copy a bucket's gradients to the host; with what tells that they are there."""
        if number == len(self._buckets):
            return [], None
        buffer, at, found = self._arriving[number % 2], 0, []
        for piece in self._buckets[number]:
            gradient = buffer[at : at + piece.size]
            gradient.copy_(piece.of(gradients), non_blocking=self._pinned)
            found.append((piece, gradient))
            at += piece.size
        if not self._pinned:
            return found, None
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        return found, arrived


KINDS: Mapping[OptimizerState, type[AdamState]] = {
    "float32": AdamState, "bfloat16": Bfloat16AdamState, "cpu": HostAdamState,
}  # fmt: skip


def rounded_stochastically(value: Tensor, noise: torch.Generator) -> Tensor:
    """A float32 tensor in bfloat16, each number at one of its two neighbours, its own value in the mean."""
    low = torch.randint(0, 1 << 16, value.shape, dtype=torch.int32, device=value.device, generator=noise)
    return ((value.view(torch.int32) + low) & -(1 << 16)).view(torch.float32).to(torch.bfloat16)


def _filled(pieces: Iterator[_AdamPiece]) -> Iterator[list[_AdamPiece]]:
    """Pieces in buckets of at most PIECE numbers."""
    bucket: list[_AdamPiece] = []
    size = 0
    for piece in pieces:
        if bucket and size + piece.size > PIECE:
            yield bucket
            bucket, size = [], 0
        bucket.append(piece)
        size += piece.size
    if bucket:
        yield bucket
