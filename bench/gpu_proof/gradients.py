"""Log-probabilities and gradients that must not depend on packing, recomputation, compilation or the head's chunks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import MicroBatch
from areal_trainer.engine.divergence import Divergence, TeacherOutputs, chunked_divergence
from areal_trainer.engine.engine import PolicyEngine
from areal_trainer.engine.logprob import chunked_logprobs, float32_logits
from torch import Tensor

from gpu_proof.cell import Measuring
from gpu_proof.parts import (
    alone,
    batch,
    directions,
    engine,
    gradients,
    likelihood,
    mean_difference,
    micros,
    model,
    off,
    ragged,
)

LENGTHS = 20


def packing(proof: Measuring) -> None:
    """The cell: sequences packed each way against each alone by the mask."""
    with alone() as ranks:
        policy = engine(model("small", proof.work, proof.device), ranks)
        apart, shared = batch(8, 1, (60, 200)), batch(2, 4, (60, 200))
        exact = _alone(policy, apart)
        proof.measured("packed-alone", mean_difference(_packed(policy, apart), exact))
        proof.measured("packed-prompt", mean_difference(_packed(policy, shared), _alone(policy, shared)))
        rows = np.split(apart.token_ids, apart.offsets[1:-1])
        back = _packed(policy, ragged(rows[::-1], np.arange(8)))
        ends = np.cumsum([len(row) for row in rows[::-1]])[:-1]
        ordered = torch.from_numpy(np.concatenate(np.split(back.numpy(), ends)[::-1]))
        proof.measured("packed-order", mean_difference(ordered, exact))


def _packed(policy: PolicyEngine, tokens: TokenBatch) -> Tensor:
    return policy.logprobs(micros(tokens, 2048, 1024), tokens.tokens)


def _alone(policy: PolicyEngine, tokens: TokenBatch) -> Tensor:
    """Each sequence in a row of its own, attention by the mask."""
    rows = np.split(tokens.token_ids, tokens.offsets[1:-1])
    single = [ragged([row], np.zeros(1)) for row in rows]
    return torch.cat([policy.logprobs(micros(one, one.tokens), one.tokens, masked=True) for one in single])


def recompute(proof: Measuring) -> None:
    """The cell: the gradients of each way of recomputing."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    with alone() as ranks:
        place = model("small", proof.work, proof.device)
        tokens, parts = _tokens(proof)
        plain, again = (_gradients(engine(place, ranks), tokens, parts) for _ in range(2))
        noise = off(again, plain)
        for mode in ("selective", "full", "offload"):
            found = _gradients(engine(place, ranks, recompute=mode), tokens, parts)
            proof.measured(f"recompute-{mode}", off(found, plain), between_two_runs_of_none=noise)


def _tokens(proof: Measuring) -> tuple[TokenBatch, list[MicroBatch]]:
    """A batch with shared prompts and its micro-batches, smaller on a CPU."""
    room = 1024 if proof.cuda else 128
    tokens = batch(3, 3, (60, 200)) if proof.cuda else batch(2, 2, (16, 32))
    return tokens, micros(tokens, room, room // 2)


def _gradients(policy: PolicyEngine, tokens: TokenBatch, parts: list[MicroBatch]) -> dict[str, Tensor]:
    policy.accumulate(parts, likelihood(tokens))
    return gradients(policy)


def compiled(proof: Measuring) -> None:
    """The cell: compiled layers. On a CPU, where kernels take minutes to build, their graphs alone."""
    if not proof.cuda:
        torch.compile = partial(torch.compile, backend="eager")  # type: ignore[assignment]
    with alone() as ranks:
        place = model("small", proof.work, proof.device)
        tokens, parts = _tokens(proof)
        # Segments one by one, as CPUs attend, are no one graph, and bfloat16 takes a CPU ten times as long.
        usual: dict[str, Any] = {} if proof.cuda else {"attention": "dense", "precision": "float32"}
        plain, fused = (engine(place, ranks, compile=mode, **usual) for mode in ("none", "blocks"))
        scores = [one.logprobs(parts, tokens.tokens) for one in (fused, plain)]
        proof.measured("compile-logprobs", mean_difference(*scores))
        exact = _gradients(plain, tokens, parts)
        proof.measured("compile-gradient", directions(_gradients(fused, tokens, parts), exact))
        both = engine(place, ranks, compile="blocks", recompute="selective", **usual)
        proof.measured("compile-selective", directions(_gradients(both, tokens, parts), exact))
        graphs = [_graphs_after(fused, length) for length in (64, 96, *range(100, 100 + 20 * LENGTHS, 20))]
        proof.measured("compile-lengths", graphs[-1] - graphs[1], graphs=graphs[-1])


def _graphs_after(policy: PolicyEngine, length: int) -> int:
    """How many graphs are compiled once a row of a length was trained and scored."""
    from torch._dynamo.utils import counters

    tokens = batch(1, 1, (length, length))
    parts = micros(tokens, length)
    policy.logprobs(parts, tokens.tokens)
    _gradients(policy, tokens, parts)
    return int(counters["stats"]["unique_graphs"])


def head(proof: Measuring) -> None:
    """The cell: the output layer in chunks, against all of it at once."""
    tokens, width, vocabulary = (4096, 512, 32_768) if proof.cuda else (512, 64, 4096)
    hidden, weight, targets = _head(tokens, width, vocabulary, proof.device)

    def plain() -> Tensor:
        return torch.log_softmax((hidden @ weight.T).float(), -1).gather(1, targets[:, None])[:, 0]

    def chunked(chunk: int | None = None) -> Tensor:
        return chunked_logprobs(hidden, weight, targets, 1.0, chunk=chunk)[0]

    whole, ours = plain(), chunked()
    proof.measured("head-plain", mean_difference(ours, whole))
    slope = torch.randn(tokens, generator=torch.Generator().manual_seed(1)).to(proof.device)
    found, exact = (
        {str(n): one.float() for n, one in enumerate(torch.autograd.grad((out * slope).sum(), (hidden, weight)))}
        for out in (ours, whole)
    )
    proof.measured("head-gradient", off(found, exact))
    with torch.no_grad():
        proof.measured("head-chunk", mean_difference(chunked(2048), chunked(220)))
        product = hidden[:256].double() @ weight.double().T
        proof.measured("head-float32", (float32_logits(hidden[:256], weight, True).double() - product).abs().max())
        taught = TeacherOutputs(torch.roll(hidden, 1, 0), weight, True)
        part = chunked_divergence(hidden, weight, taught, Divergence("reverseKL"), chunk=100)
        at_once = chunked_divergence(hidden, weight, taught, Divergence("reverseKL"), chunk=tokens)
        proof.measured("head-divergence", (part - at_once).abs().max())


def _head(tokens: int, width: int, vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=random)
    weight = torch.randn(vocabulary, width, generator=random) * width**-0.5
    targets = torch.randint(vocabulary, (tokens,), generator=random)
    half = [one.to(device, torch.bfloat16).requires_grad_() for one in (hidden, weight)]
    return half[0], half[1], targets.to(device)


FUNCTIONS = {"packing": packing, "recompute": recompute, "compile": compiled, "head": head}
