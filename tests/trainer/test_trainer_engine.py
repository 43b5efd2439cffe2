"""The engine against plain Hugging Face in the same precision or a higher one."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from areal.admit.memory.rank import chunk_tokens as planned_chunk
from areal.errors import DataError
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.adam_states import AdamWOptions
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.logprob import chunk_tokens, chunked_logprobs
from areal_trainer.engine.model import empty_model
from areal_trainer.engine.optimizer import RateSchedule
from hypothesis import given, settings
from hypothesis import strategies as st
from support.forked_ranks import program
from support.trainer_parts import batch, whole_model


@given(
    tokens=st.integers(1, 40),
    vocabulary=st.integers(2, 50),
    chunk=st.integers(1, 17),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
)
@settings(deadline=None, max_examples=25)
def test_chunked_logprobs_and_gradients_equal_the_whole_matrix_in_float64(tokens, vocabulary, chunk, temperature):
    torch.manual_seed(tokens)
    hidden = torch.randn(tokens, 8, requires_grad=True)
    weight = torch.randn(vocabulary, 8, requires_grad=True)
    targets = torch.randint(0, vocabulary, (tokens,))
    scale, bonus = torch.randn(tokens), torch.randn(tokens) * (tokens % 2)  # without entropy's gradient, and with it
    values, entropy = chunked_logprobs(hidden, weight, targets, temperature, chunk=chunk)
    loss = (values * scale).sum()
    (loss + (entropy * bonus).sum() if tokens % 2 else loss).backward()

    exact_hidden = hidden.detach().double().requires_grad_(True)
    exact_weight = weight.detach().double().requires_grad_(True)
    exact_log = torch.log_softmax(exact_hidden @ exact_weight.T / temperature, -1)
    exact = exact_log.gather(1, targets[:, None]).squeeze(1)
    exact_entropy = -(exact_log.exp() * exact_log).sum(-1)
    (exact * scale.double() + exact_entropy * bonus.double()).sum().backward()
    torch.testing.assert_close(values.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), exact_entropy, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(hidden.grad.double(), exact_hidden.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weight.grad.double(), exact_weight.grad, rtol=1e-4, atol=1e-4)


def test_a_fused_output_layer_gives_what_each_operation_gives():
    torch.manual_seed(0)
    for tokens, chunk in ((5, 3), (40, 16), (41, 64)):  # one compilation for all
        hidden, weight = (torch.randn(n, 8).bfloat16().requires_grad_() for n in (tokens, 300))
        targets, scale = torch.randint(0, 300, (tokens,)), torch.randn(tokens)
        found = []
        for fused in (True, False):
            logprobs, entropy = chunked_logprobs(hidden, weight, targets, 0.7, fused=fused, chunk=chunk)
            slopes = torch.autograd.grad((logprobs * scale).sum() + entropy.sum(), (hidden, weight))
            found.append((logprobs, entropy, *slopes))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("length", "temperature"), [(8, 1.0), (32, 0.7), (128, 1.0)])
def test_packed_sequences_score_as_if_alone(model_path, ranks, length, temperature, shared):
    tokens = batch(6, 4, shared=shared)
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    micros = rank_micro_batches(
        tokens,
        np.arange(tokens.sequences),
        tokens.trainable(),
        rank=0,
        world_size=1,
        micro_batch_tokens=256,
        pack_length=length,
    )
    packed = engine.logprobs(micros, tokens.tokens, temperature).numpy()
    reference = whole_model(model_path).double().eval()
    for s in range(tokens.sequences):
        part = slice(tokens.offsets[s], tokens.offsets[s + 1])
        ids = torch.from_numpy(tokens.token_ids[part])[None]
        with torch.no_grad():
            logits = reference(input_ids=ids, use_cache=False).logits[0, :-1] / temperature
        alone = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None]).squeeze(1).numpy()
        alone = np.concatenate([[0.0], alone])
        wanted = tokens.trainable()[part]
        np.testing.assert_allclose(packed[part][wanted], alone[wanted], atol=1e-5)


def accumulate(engine, tokens, budget):
    micros = rank_micro_batches(
        tokens,
        np.arange(tokens.sequences),
        tokens.trainable(),
        rank=0,
        world_size=1,
        micro_batch_tokens=budget,
        pack_length=16,
    )
    engine.accumulate(micros, lambda logprobs, entropy, micro: -logprobs.sum() / 100)
    return len(micros)


@pytest.mark.parametrize("shared", [False, True])
def test_sharded_adamw_equals_torch_on_the_whole_model(model_path, ranks, shared):
    tokens = batch(4, 4, shared=shared)
    options = AdamWOptions(betas=(0.9, 0.95), weight_decay=0.1, grad_clip=0.05)
    engine = PolicyEngine(model_path, ModelOptions(optimizer=options), ranks)
    plain = whole_model(model_path)
    named = list(plain.named_parameters())
    matrices = [p for name, p in named if p.dim() == 2 and "embed" not in name]
    others = [p for name, p in named if p.dim() != 2 or "embed" in name]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    for _ in range(3):
        accumulate(engine, tokens, 9999)
        norm = engine.optimizer.step(1e-3)
        for s in range(tokens.sequences):
            part = slice(tokens.offsets[s], tokens.offsets[s + 1])
            ids = torch.from_numpy(tokens.token_ids[part])[None]
            logits = plain(input_ids=ids, use_cache=False).logits[0, :-1]
            logprobs = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None]).squeeze(1)
            (-(logprobs * torch.from_numpy(tokens.trainable()[part][1:])).sum() / 100).backward()
        expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
        adam.step()
        adam.zero_grad()
        assert norm == pytest.approx(float(expected), rel=1e-4)
    exported = dict(engine.export())
    assert "lm_head.weight" not in exported  # tied
    for name, tensor in plain.named_parameters():
        torch.testing.assert_close(exported[name], tensor.detach(), rtol=1e-4, atol=2e-5)


def test_many_micro_batches_make_the_gradient_of_one(model_path, ranks):
    tokens = batch(6, 4)
    norms = []
    for budget in (9999, 32):
        engine = PolicyEngine(model_path, ModelOptions(), ranks)
        count = accumulate(engine, tokens, budget)
        norms.append(engine.optimizer.step(0.0))
    assert count > 3
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_a_gradient_that_is_not_finite_changes_nothing(model_path, ranks):
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    before = {name: tensor.clone() for name, tensor in engine.export()}
    tokens = batch(2, 2)
    micros = rank_micro_batches(
        tokens, np.arange(4), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64, pack_length=None
    )
    engine.accumulate(micros, lambda logprobs, entropy, micro: logprobs.sum() * float("nan"))
    assert not np.isfinite(engine.optimizer.step(1.0))
    assert all(torch.equal(before[name], tensor) for name, tensor in engine.export())
    assert engine.optimizer.updates == 0


def test_bfloat16_computes_near_float32_and_keeps_float32_masters(model_path, ranks):
    tokens = batch(3, 4)
    half = PolicyEngine(model_path, ModelOptions(precision="bfloat16"), ranks)
    full = PolicyEngine(model_path, ModelOptions(), ranks)
    micros = rank_micro_batches(
        tokens, np.arange(12), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64, pack_length=None
    )
    difference = (half.logprobs(micros, tokens.tokens) - full.logprobs(micros, tokens.tokens)).abs().max()
    assert 0 < float(difference) < 0.1
    assert all(value.dtype == torch.float32 for value in half.state().values())
    assert all(tensor.dtype == torch.bfloat16 for _, tensor in half.export())


def test_the_rate_warms_up_and_decays_to_a_tenth():
    linear = RateSchedule(peak=1.0, warmup_steps=5, kind="linear", min_ratio=0.1)
    assert [linear.at(step, 105) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert linear.at(5, 105) == pytest.approx(1.0)
    assert linear.at(104, 105) == pytest.approx(0.1)
    assert linear.at(9999, 105) == pytest.approx(0.1)
    assert RateSchedule(peak=2.0, kind="constant").at(99, 100) == 2.0
    assert RateSchedule(peak=1.0, warmup_steps=0, kind="cosine").at(50, 101) == pytest.approx(0.55)


def test_no_dropout_of_the_configuration_is_left(model_path, ranks, tmp_path):
    config = json.loads((model_path / "config.json").read_text())
    shutil.copytree(model_path, tmp_path / "wet")
    (tmp_path / "wet" / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    tokens = batch(2, 2)
    micros = rank_micro_batches(
        tokens, np.arange(4), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64, pack_length=None
    )
    scored = [
        PolicyEngine(path, ModelOptions(), ranks).logprobs(micros, tokens.tokens)
        for path in (model_path, tmp_path / "wet")
    ]
    assert torch.equal(*scored)


def test_a_directory_without_a_model_is_the_datas_fault(tmp_path):
    with pytest.raises(DataError, match=r"config\.json"):
        empty_model(tmp_path)


def test_gradients_of_several_micro_batches_do_not_change_when_each_is_told_that_it_is_the_last(tmp_path, model_path):
    """The root's reduced gradient is given back after each: a large model's, on two ranks."""
    lines = [json.loads(line) for line in program("accumulating_ranks", tmp_path, model_path)]
    assert all(line["equal"] and line["micros"] >= 3 and line["gradients"] > 10 for line in lines)
    assert all(line["waiting"] == [True, False] for line in lines), (
        "held after a micro-batch: told that more follow, now"
    )


@pytest.mark.parametrize("vocabulary", [1_000, 32_000, 152_064])
@pytest.mark.parametrize("card", [24 << 30, 79 << 30])
def test_the_output_layer_is_cut_on_a_gpu_as_the_plan_says(monkeypatch, vocabulary, card):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=card))
    found = chunk_tokens(vocabulary, torch.device("cuda"))
    assert found == planned_chunk(vocabulary, card) >= 1024
    assert chunk_tokens(vocabulary, torch.device("cpu")) == planned_chunk(vocabulary, 0)


@pytest.mark.parametrize("exact", [False, True])
def test_a_gpu_s_chunks_give_the_values_and_gradients_of_a_cpu_s(exact):
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(3000, 8), torch.randn(50, 8), torch.randint(50, (3000,))
    found = []
    for chunk in (220, 2048):
        states, matrix = hidden.clone().requires_grad_(True), weight.clone().requires_grad_(True)
        logprobs, entropy = chunked_logprobs(states, matrix, targets, 1.0, exact=exact, chunk=chunk)
        (logprobs.sum() + entropy.sum()).backward()
        found.append((logprobs, entropy, states.grad, matrix.grad))
    for small, large in zip(*found, strict=True):
        torch.testing.assert_close(small, large, rtol=1e-5, atol=1e-4)
