"""Log-probabilities of given tokens without ever holding a [tokens, vocabulary] matrix.

Computes the output layer in chunks and again in the backward pass: for a vocabulary of 152k the peak is the gradient
of the weight and one chunk, a seventh of what plain logits take. Logits of bfloat16 states and weights are rounded to
bfloat16 (0.125 apart from 16 on) unless `exact`: then they are the float32 sums of the same products.
"""

from collections.abc import Callable
from functools import cache
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
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, exact: bool, fused: bool,
        chunk: int,
    ) -> Any:  # fmt: skip
        normalizer, logprobs, entropy = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(3))
        scored = _compiled(_scored) if fused else _scored
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            normalizer[part], logprobs[part], entropy[part] = scored(  # detached: one graph for both kinds of pass
                hidden[part].detach(), weight.detach(), targets[part], temperature, exact
            )
        ctx.save_for_backward(hidden, weight, targets, normalizer, logprobs, entropy)
        ctx.how = temperature, exact
        ctx.fused = fused
        ctx.chunk = chunk
        ctx.set_materialize_grads(False)  # None tells which of the two the loss doesn't use
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        hidden, weight, targets, normalizer, logprobs, entropy = ctx.saved_tensors
        grad_logprobs, grad_entropy = grads
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(normalizer)
        grad_hidden = torch.empty_like(hidden)
        trains = ctx.needs_input_grad[1]  # not where the output layer is frozen
        grad_weight = torch.zeros(weight.shape if trains else (), dtype=torch.float32, device=weight.device)
        slopes = _compiled(_slopes) if ctx.fused else _slopes
        for start in range(0, len(hidden), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            of_entropy = None if grad_entropy is None else (entropy[part], grad_entropy[part])
            grad_logits = slopes(hidden[part], weight, normalizer[part], grad_logprobs[part], of_entropy, *ctx.how)
            target = _slope(logprobs[part].clone(), grad_logprobs[part], of_entropy, ctx.how[0], 1.0)
            grad_logits.scatter_(1, targets[part, None], target.to(grad_logits.dtype)[:, None])
            grad_hidden[part] = grad_logits @ weight
            if trains:
                grad_weight += grad_logits.T @ hidden[part]  # cast as it is added: no float32 copy of the product
            del grad_logits  # or it lies beside the next chunk's logits
        return grad_hidden, grad_weight.to(weight.dtype) if trains else None, None, None, None, None, None


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """One kernel for what is done to each logit, for chunks of all lengths."""
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True, fullgraph=True)
    return compiled


def _scored(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, exact: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A chunk's normalisers, log-probabilities and entropies, [tokens] each."""
    logits = float32_logits(hidden, weight, exact).div_(temperature)
    normalizer = torch.logsumexp(logits, dim=-1)
    logprobs = logits.gather(1, targets[:, None]).squeeze(1) - normalizer
    log_probabilities = logits.sub_(normalizer[:, None])
    return normalizer, logprobs, -(log_probabilities.exp() * log_probabilities).sum(-1)


def _slopes(
    hidden: Tensor, weight: Tensor, normalizer: Tensor, grad: Tensor, of_entropy: tuple[Tensor, Tensor] | None,
    temperature: float, exact: bool,
) -> Tensor:  # fmt: skip
    """The gradient of a chunk's logits, [tokens, vocabulary], as if none were a target."""
    log_probabilities = float32_logits(hidden, weight, exact).div_(temperature).sub_(normalizer[:, None])
    rows = None if of_entropy is None else (of_entropy[0][:, None], of_entropy[1][:, None])
    return _slope(log_probabilities, grad[:, None], rows, temperature, 0.0).to(hidden.dtype)


def _slope(
    log_probability: Tensor, grad: Tensor, of_entropy: tuple[Tensor, Tensor] | None, temperature: float, target: float
) -> Tensor:
    """∂/∂z_v of a target's log-probability, (1[v is it] − q_v)/T, and of the entropy H, −q_v·(log q_v + H)/T.

    Overwrites `log_probability`.
    """
    probability = log_probability.exp()
    if of_entropy is None:
        return probability.sub_(target).mul_(-grad / temperature)
    entropy, grad_entropy = of_entropy
    slope = log_probability.add_(entropy).mul_(probability).mul_(grad_entropy / temperature)
    return probability.sub_(target).mul_(-grad / temperature).sub_(slope)


def chunked_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    exact: bool = False,
    fused: bool = False,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden·weightᵀ / temperature)[target], and the entropy of that distribution.

    Args:
        hidden: [tokens, width]; weight: [vocabulary, width]; targets: [tokens]
        temperature: of the sampler; applied before the normaliser, or the values would not be the sampler's
        exact: logits aren't rounded to the states' precision; their gradient is, either way
        fused: what is done to each logit is compiled (torch.compile): fewer passes over a chunk, less memory; not where
            `exact`

    Returns:
        two float32 tensors, [tokens]
    """
    size = chunk or chunk_tokens(weight.shape[0], weight.device)
    logprobs, entropy = _ChunkedLogprob.apply(hidden, weight, targets, temperature, exact, fused and not exact, size)
    return logprobs, entropy
