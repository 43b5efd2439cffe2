"""Log-probabilities of given tokens without ever holding a [tokens, vocabulary] matrix.

Computes the output layer in chunks and again in the backward pass: for a vocabulary of 152k the peak is the gradient
of the weight and one chunk, a seventh of what plain logits take. Logits of bfloat16 states and weights are rounded to
bfloat16 (0.125 apart from 16 on) unless `exact`: then they are the float32 sums of the same products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CHUNK_ELEMENTS = 1 << 25  # 128 MiB of float32 logits at a time: large matrix products, small peak
_CHUNK_BYTES = 10  # a logit and its gradient in float32, and once more in the weights' precision
_TILE_ELEMENTS = 1 << 20  # 4 MiB of the output layer cast at a time: stays in a cache


def float32_logits(hidden: Tensor, weight: Tensor, exact: bool) -> Tensor:
    """hidden [tokens, width] · weight [vocabulary, width]ᵀ, float32 [tokens, vocabulary]. No gradient."""
    if not exact or hidden.dtype == torch.float32:
        return (hidden @ weight.T).float()
    if hidden.is_cuda:
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)
    states, rows = hidden.float(), max(1, _TILE_ELEMENTS // weight.shape[1])
    logits = states.new_empty(len(hidden), len(weight))
    for start in range(0, len(weight), rows):
        torch.mm(states, weight[start : start + rows].float().T, out=logits[:, start : start + rows])
    return logits


def chunk_tokens(vocabulary: int, device: torch.device) -> int:
    """Tokens a chunk. A GPU's matrix product wants a thousand rows at least; more where a twentieth of it has room."""
    least = max(128, _CHUNK_ELEMENTS // vocabulary)
    if device.type != "cuda":
        return least
    room = torch.cuda.get_device_properties(device).total_memory // 20
    return max(least, min(4096, max(1024, room // (_CHUNK_BYTES * vocabulary) // 128 * 128)))


class _ChunkedLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, exact: bool, chunk: int
    ) -> Any:
        tokens = hidden.shape[0]
        logprobs = torch.empty(tokens, dtype=torch.float32, device=hidden.device)
        normalizer = torch.empty_like(logprobs)
        entropy = torch.empty_like(logprobs)
        for start in range(0, tokens, chunk):
            part = slice(start, min(start + chunk, tokens))
            logits = float32_logits(hidden[part], weight, exact).div_(temperature)
            log_total = torch.logsumexp(logits, dim=-1)
            normalizer[part] = log_total
            logprobs[part] = logits.gather(1, targets[part, None]).squeeze(1) - log_total
            log_probabilities = logits.sub_(log_total[:, None])
            entropy[part] = -(log_probabilities.exp() * log_probabilities).sum(-1)
        ctx.save_for_backward(hidden, weight, targets, normalizer, entropy)
        ctx.temperature = temperature
        ctx.exact = exact
        ctx.chunk = chunk
        ctx.set_materialize_grads(False)  # None tells which of the two the loss doesn't use
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        hidden, weight, targets, normalizer, entropy = ctx.saved_tensors
        grad_logprobs, grad_entropy = grads
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(normalizer)
        grad_hidden = torch.empty_like(hidden)
        trains = ctx.needs_input_grad[1]  # not where the output layer is frozen
        grad_weight = torch.zeros(weight.shape if trains else (), dtype=torch.float32, device=weight.device)
        for start in range(0, hidden.shape[0], ctx.chunk):
            part = slice(start, min(start + ctx.chunk, hidden.shape[0]))
            logits = float32_logits(hidden[part], weight, ctx.exact).div_(ctx.temperature)
            log_probabilities = logits.sub_(normalizer[part, None])
            probabilities = log_probabilities.exp()
            grad_logits = probabilities.neg_() if grad_entropy is None else probabilities.neg()
            grad_logits.scatter_add_(1, targets[part, None], torch.ones_like(grad_logits[:, :1]))
            grad_logits.mul_((grad_logprobs[part] / ctx.temperature)[:, None])
            if grad_entropy is not None:  # ∂H/∂z_v = −q_v·(log q_v + H)/T
                slope = log_probabilities.add_(entropy[part, None]).mul_(probabilities)
                grad_logits.sub_(slope.mul_((grad_entropy[part] / ctx.temperature)[:, None]))
            grad_logits = grad_logits.to(hidden.dtype)
            grad_hidden[part] = grad_logits @ weight
            if trains:
                grad_weight += grad_logits.T @ hidden[part]  # cast as it is added: no float32 copy of the product
        return grad_hidden, grad_weight.to(weight.dtype) if trains else None, None, None, None, None


def chunked_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    exact: bool = False,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden·weightᵀ / temperature)[target], and the entropy of that distribution.

    Args:
        hidden: [tokens, width]; weight: [vocabulary, width]; targets: [tokens]
        temperature: of the sampler; applied before the normaliser, or the values would not be the sampler's
        exact: logits aren't rounded to the states' precision; their gradient is, either way

    Returns:
        two float32 tensors, [tokens]
    """
    size = chunk or chunk_tokens(weight.shape[0], weight.device)
    logprobs, entropy = _ChunkedLogprob.apply(hidden, weight, targets, temperature, exact, size)
    return logprobs, entropy
