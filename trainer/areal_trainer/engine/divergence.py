"""Divergence between two models' next-token distributions without ever holding a [tokens, vocabulary] matrix of either.

Computes both output layers in chunks, and again in the backward pass, which reaches the student alone. Tokens that only
one of the two models has are left out of both distributions.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from areal_trainer.engine.logprob import chunk_tokens, float32_logits


@dataclass(frozen=True)
class Divergence:
    """What is measured between a student π and a teacher T, both softmax(logits / temperature).

    forwardKL: Σ T log(T/π). reverseKL: Σ π log(π/T). jsd (2306.13649): b·Σ T log(T/m) + (1−b)·Σ π log(π/m) with the
    mixture m = b·T + (1−b)·π, b = teacher_share.
    """

    loss: Literal["forwardKL", "reverseKL", "jsd"] = "forwardKL"
    temperature: float = 1.0
    teacher_share: float = 0.5

    def value(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Of normalised log-probabilities, [tokens, vocabulary] each, to [tokens]."""
        if self.loss == "forwardKL":
            return (teacher.exp() * (teacher - student)).sum(-1)
        if self.loss == "reverseKL":
            return (student.exp() * (student - teacher)).sum(-1)
        mixture, share = self._mixture(student, teacher), self.teacher_share
        of_teacher = (teacher.exp() * (teacher - mixture)).sum(-1)
        return share * of_teacher + (1 - share) * (student.exp() * (student - mixture)).sum(-1)

    def slope(self, student: Tensor, teacher: Tensor) -> Tensor:
        """∂value/∂(the student's logits), [tokens, vocabulary].

        With g = ∂value/∂π it is π·(g − Σ π g)/temperature.
        """
        if self.loss == "forwardKL":
            return (student.exp() - teacher.exp()) / self.temperature
        if self.loss == "reverseKL":
            of_probability = student - teacher
        else:
            of_probability = (student - self._mixture(student, teacher)) * (1 - self.teacher_share)
        probability = student.exp()
        mean = (probability * of_probability).sum(-1, keepdim=True)
        return probability * (of_probability - mean) / self.temperature

    def _mixture(self, student: Tensor, teacher: Tensor) -> Tensor:
        share = self.teacher_share
        return torch.logaddexp(teacher + math.log(share), student + math.log(1 - share))


@dataclass(frozen=True)
class TeacherOutputs:
    """A teacher's view of a micro-batch's predicted tokens: what its output layer gets, and that layer."""

    hidden: Tensor  # [predicted, its width]
    weight: Tensor  # [its vocabulary, its width]
    exact: bool = False  # logits of both models aren't rounded to the states' precision


class _ChunkedDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, taught: TeacherOutputs, measure: Divergence, chunk: int
    ) -> Any:
        values = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            values[part] = measure.value(*_distributions(hidden[part], weight, taught, part, measure.temperature))
        ctx.save_for_backward(hidden, weight, taught.hidden, taught.weight)
        ctx.measure, ctx.exact, ctx.chunk = measure, taught.exact, chunk
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        hidden, weight, *of_teacher = ctx.saved_tensors
        taught, measure = TeacherOutputs(of_teacher[0], of_teacher[1], ctx.exact), ctx.measure
        known = min(weight.shape[0], taught.weight.shape[0])
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        for start in range(0, hidden.shape[0], ctx.chunk):
            part = slice(start, start + ctx.chunk)
            both = _distributions(hidden[part], weight, taught, part, measure.temperature)
            grad_logits = measure.slope(*both).mul_(grads[0][part, None]).to(hidden.dtype)
            grad_hidden[part] = grad_logits @ weight[:known]
            grad_weight[:known] += grad_logits.T @ hidden[part]
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None


def _distributions(
    hidden: Tensor, weight: Tensor, taught: TeacherOutputs, part: slice, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the tokens that both models have: the student's, the teacher's."""
    known = min(weight.shape[0], taught.weight.shape[0])
    made = ((hidden, weight), (taught.hidden[part], taught.weight))
    student, teacher = (
        torch.log_softmax(float32_logits(states, matrix[:known], taught.exact).div_(temperature), -1)
        for states, matrix in made
    )
    return student, teacher


def chunked_divergence(
    hidden: Tensor, weight: Tensor, taught: TeacherOutputs, measure: Divergence, *, chunk: int | None = None
) -> Tensor:
    """The divergence of the distributions at each token, float32 [tokens], with gradient for the student.

    Args:
        hidden: [tokens, width]; weight: [vocabulary, width]: the student's.
    """
    size = chunk or chunk_tokens(3 * weight.shape[0], weight.device)  # two models' logits and a slope, each a part
    values: Tensor = _ChunkedDivergence.apply(hidden, weight, taught, measure, size)
    return values
