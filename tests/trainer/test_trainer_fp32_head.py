"""The float32 head: logits of bfloat16 states and weights that were never rounded, in the trainer and its engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from areal.engine.embedded import EngineOptions, TorchEngine
from areal.engine.main import options, parser
from areal.generation.engine_command import EngineStart, launch
from areal.spec import serving
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.divergence import Divergence, TeacherOutputs, chunked_divergence
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.logprob import chunked_logprobs, float32_logits
from support.engine_models import make_model
from support.trainer_parts import batch
from torch import Tensor

ROUNDED = 0.01  # at least: logits of 16 to 32 are 0.125 apart in bfloat16


def _states(width: int = 64, vocabulary: int = 40_000) -> tuple[Tensor, Tensor, Tensor]:
    """States of 33 tokens whose largest logits are near 30, an output layer of several tiles, and targets."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(33, width), torch.randn(vocabulary, width)
    return hidden.bfloat16(), weight.bfloat16(), torch.randint(0, vocabulary, (33,))


def _published(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float = 0.7) -> Tensor:
    """Log-probabilities in float64, of numbers that bfloat16 has."""
    logits = hidden.double() @ weight.double().T / temperature
    return torch.log_softmax(logits, -1).gather(1, targets[:, None]).squeeze(1)


@pytest.mark.parametrize("chunk", [5, None])
def test_log_probabilities_are_those_of_float64_and_rounded_without(chunk: int | None) -> None:
    hidden, weight, targets = _states()
    exact = _published(hidden, weight, targets)
    told, _ = chunked_logprobs(hidden, weight, targets, 0.7, exact=True, chunk=chunk)
    rounded, _ = chunked_logprobs(hidden, weight, targets, 0.7, chunk=chunk)
    torch.testing.assert_close(told.double(), exact, rtol=1e-5, atol=1e-5)
    assert float((rounded.double() - exact).abs().mean()) > ROUNDED


def test_gradients_are_those_of_float64_to_the_precision_of_the_states() -> None:
    hidden, weight, targets = _states()
    weight = weight[:3000]
    targets %= 3000
    both: Any = [tensor.clone().requires_grad_(True) for tensor in (hidden, weight)]
    logprobs, entropy = chunked_logprobs(*both, targets, 0.7, exact=True)
    (logprobs.sum() + entropy.sum()).backward()
    sure: Any = [tensor.double().requires_grad_(True) for tensor in (hidden, weight)]
    every = torch.log_softmax(sure[0] @ sure[1].T / 0.7, -1)
    (every.gather(1, targets[:, None]).sum() - (every.exp() * every).sum()).backward()
    for mine, other in zip(both, sure, strict=True):
        assert float(torch.cosine_similarity(mine.grad.double().flatten(), other.grad.flatten(), 0)) > 0.9999


def test_a_teacher_is_compared_with_unrounded_logits_too() -> None:
    hidden, weight, _ = _states()
    moved = (weight + 0.01).bfloat16()
    measure = Divergence("reverseKL")
    told = chunked_divergence(hidden, weight, TeacherOutputs(hidden, moved, True), measure)
    sure = [torch.log_softmax(hidden.double() @ matrix.double().T, -1) for matrix in (weight, moved)]
    wanted = (sure[0].exp() * (sure[0] - sure[1])).sum(-1)
    torch.testing.assert_close(told.double(), wanted, rtol=1e-4, atol=1e-5)
    rounded = chunked_divergence(hidden, weight, TeacherOutputs(hidden, moved), measure)
    assert float((rounded.double() - wanted).abs().max()) > 10 * float((told.double() - wanted).abs().max())


@pytest.mark.parametrize("fp32_head", [False, True])
def test_the_jobs_field_reaches_both_engines(tmp_path, fp32_head: bool) -> None:
    start = EngineStart(tmp_path, tmp_path, "1.f1", 4000, 16, "key", fp32_head=fp32_head)
    argv = launch(serving.EmbeddedEngineBlock(), start).argv
    assert options(parser().parse_args(argv[3:])).fp32_head is fp32_head
    stock = launch(serving.SglangEngine(type="sglang"), start).argv
    assert ("--enable-fp32-lm-head" in stock) is fp32_head


@pytest.mark.parametrize("fp32_head", [False, True])
def test_the_embedded_engine_makes_the_trainers_logits(tmp_path, fp32_head: bool) -> None:
    model_path = make_model(tmp_path / "model", 0)
    told = EngineOptions(model_path=model_path, dtype="bfloat16", fp32_head=fp32_head)
    engine = TorchEngine(told, lambda error: None)
    weights, model = engine._scheduler.weights, engine._scheduler._model
    hidden = (30 * torch.randn(9, engine.config.hidden)).bfloat16()
    logits = model.logits(weights, hidden)
    normed = torch.nn.functional.rms_norm(hidden, (engine.config.hidden,), weights.final_norm, engine.config.rms_eps)
    torch.testing.assert_close(logits, float32_logits(normed, weights.head, fp32_head), rtol=1e-6, atol=1e-6)
    assert bool(torch.equal(logits, logits.bfloat16().float())) is not fp32_head


def test_an_engine_in_bfloat16_scores_by_unrounded_logits(model_path) -> None:
    tokens, ranks = batch(3, 2), RankGroup()
    try:
        (micro,) = rank_micro_batches(
            tokens, np.arange(tokens.sequences), tokens.trainable(),
            rank=0, world_size=1, micro_batch_tokens=9999, pack_length=9999,
        )  # fmt: skip
        for fp32_head in (True, False):
            engine = PolicyEngine(model_path, ModelOptions(precision="bfloat16", fp32_head=fp32_head), ranks)
            taught = engine.taught(micro)
            wanted = _published(taught.hidden, taught.weight, micro.targets, 1.0)
            found = float((engine.forward(micro)[0].detach().double() - wanted).abs().max())
            assert (found < 1e-5) is fp32_head, found
    finally:
        ranks.close()
