"""LoRA in the trainer: the numbers of peft, a frozen base that is its own reference, adapters as versions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from areal.errors import DataError, ExitCode
from areal.weights.adapter import ADAPTER_CONFIG, AdapterConfig
from areal.weights.manifest import MANIFEST_NAME, Manifest
from areal.weights.verify import open_version, verify_tensors
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.checkpoint.saving import RunPosition
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.publish.exporter import merge
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from support.lora_parts import exported, micros_of, train
from support.trainer_parts import batch, whole_model
from support.trainer_world import losses

LORA = AdapterConfig(rank=3, alpha=12.0, targets=("q_proj", "v_proj", "gate_proj", "down_proj"))
SPEC = {"lora": {"rank": 4, "alpha": 8, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}}


def gradients(engine):
    return {name: p.grad.full_tensor() for name, p in engine._parameters.items() if p.grad is not None}


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_logprobs_and_gradients_equal_pefts_own(tmp_path, model_path, ranks, recompute):
    engine = PolicyEngine(model_path, ModelOptions(adapter=LORA, seed=5, recompute=recompute), ranks)
    for seed in range(3):
        assert train(engine, seed) > 0
    theirs = PeftModel.from_pretrained(
        whole_model(model_path), exported(engine, tmp_path / "adapter"), is_trainable=True
    )
    tokens = batch(3, 4, seed=9)
    engine.accumulate(micros_of(tokens), lambda logprobs, entropy, micro: -logprobs.sum() / 50)
    ours = engine.logprobs(micros_of(tokens), tokens.tokens).numpy()
    for s in range(tokens.sequences):
        part = slice(tokens.offsets[s], tokens.offsets[s + 1])
        ids, wanted = torch.from_numpy(tokens.token_ids[part])[None], tokens.trainable()[part][1:]
        logits = theirs(input_ids=ids, use_cache=False).logits[0, :-1]
        logprobs = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None]).squeeze(1)
        np.testing.assert_allclose(ours[part][1:][wanted], logprobs.detach().numpy()[wanted], atol=1e-5)
        (-(logprobs * torch.from_numpy(wanted)).sum() / 50).backward()
    made = gradients(engine)
    named = {name.replace(".default", ""): p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    assert len(made) == len(named) == 2 * 2 * len(LORA.targets)
    for name, gradient in made.items():
        other = f"base_model.model.{name.removeprefix('lm.').replace('.adapter.', '.')}"
        torch.testing.assert_close(gradient, named[other], rtol=1e-4, atol=1e-6)


def test_a_fresh_adapter_is_pefts_fresh_one_and_changes_nothing(model_path, ranks):
    engine = PolicyEngine(model_path, ModelOptions(adapter=LORA), ranks)
    config = LoraConfig(r=LORA.rank, lora_alpha=int(LORA.alpha), target_modules=list(LORA.targets))
    theirs = dict(get_peft_model(whole_model(model_path), config).named_parameters())
    ours = dict(engine.export())
    assert ours.keys() == {name.replace(".default", "") for name in theirs if "lora_" in name}
    for name, tensor in ours.items():
        other = theirs[name.replace(".weight", ".default.weight")]
        assert tensor.shape == other.shape
        bound = tensor.shape[1] ** -0.5 if "lora_A" in name else 0.0
        assert tensor.abs().max() <= bound
        assert "lora_B" in name or 0.5 * bound < float(other.detach().abs().max()) <= bound < 2 * float(
            tensor.abs().max()
        )
    tokens = batch(2, 4)
    plain = PolicyEngine(model_path, ModelOptions(), ranks).logprobs(micros_of(tokens), tokens.tokens)
    assert torch.equal(engine.logprobs(micros_of(tokens), tokens.tokens), plain)
    train(engine, 1)
    assert not torch.allclose(engine.logprobs(micros_of(tokens), tokens.tokens), plain, atol=1e-3)
    assert torch.equal(engine.base_logprobs(micros_of(tokens), tokens.tokens), plain)


def test_training_goes_on_bitwise_from_a_checkpoint_of_the_adapter_alone(tmp_path, model_path, ranks):
    options = ModelOptions(precision="bfloat16", adapter=LORA)
    engine = PolicyEngine(model_path, options, ranks)
    assert {p.dtype for p in engine._parameters.values() if not p.requires_grad} == {torch.bfloat16}
    assert {p.dtype for p in engine._parameters.values() if p.requires_grad} == {torch.float32}
    train(engine, 0)
    assert all(".lora_" in name for name in engine.state())
    Checkpointer(tmp_path, 2, engine).save(RunPosition(1, 1), lambda: None).wait()
    uninterrupted = [train(engine, seed) for seed in (1, 2)]
    resumed = PolicyEngine(model_path, options, ranks)
    checkpointer = Checkpointer(tmp_path, 2, resumed)
    checkpointer.load(checkpointer.newest([]))
    assert [train(resumed, seed) for seed in (1, 2)] == uninterrupted
    assert all(torch.equal(a[1], b[1]) for a, b in zip(engine.export(), resumed.export(), strict=True))
    for other in (None, AdapterConfig(rank=4, alpha=12.0, targets=LORA.targets)):
        stranger = PolicyEngine(model_path, ModelOptions(adapter=other), ranks)
        with pytest.raises(DataError, match="another shape"):
            Checkpointer(tmp_path, 2, stranger).load(checkpointer.newest([]))


def test_the_merged_export_scores_as_base_and_adapter(tmp_path, model_path, ranks):
    engine = PolicyEngine(model_path, ModelOptions(adapter=LORA), ranks)
    train(engine, 0)
    adapter = exported(engine, tmp_path / "v1")
    (model_path / "model.safetensors").chmod(0o644)
    merge(model_path, model_path, adapter, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").stat().st_mode & 0o777 == 0o644
    tokens = batch(2, 4)
    ours = engine.logprobs(micros_of(tokens), tokens.tokens)
    merged = PolicyEngine(tmp_path / "model", ModelOptions(), ranks).logprobs(micros_of(tokens), tokens.tokens)
    torch.testing.assert_close(merged, ours, atol=1e-5, rtol=1e-5)
    files = load_file(tmp_path / "model" / "model.safetensors")
    assert files.keys() == load_file(model_path / "model.safetensors").keys()
    assert (tmp_path / "model" / "adapter" / ADAPTER_CONFIG).is_file()
    alone = {name: tensor for name, tensor in engine.export() if "layers.1." in name} | {
        "base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": torch.zeros(3, 32)
    }
    save_file(alone, adapter / "adapter_model.safetensors")
    with pytest.raises(DataError, match=r"layers\.9"):
        merge(model_path, model_path, adapter, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_target_that_the_model_does_not_have_is_named(model_path, ranks):
    strange = AdapterConfig(rank=2, alpha=2.0, targets=("q_proj", "qkv_proj"))
    with pytest.raises(DataError, match="no linear layers qkv_proj"):
        PolicyEngine(model_path, ModelOptions(adapter=strange), ranks)


@pytest.mark.component
@pytest.mark.timeout(400)
def test_a_run_publishes_adapters_merges_them_and_two_ranks_get_the_losses_of_one(make_world):
    algorithm, optimizer = {"maxSteps": 3, "kl": {"coefficient": 0.1}}, {"learningRate": 3e-3}
    alone = make_world("alone", algorithm=algorithm, optimizer=optimizer, spec={"trainer": SPEC})
    alone.fill(range(9), staleness=9)
    assert alone.train() == ExitCode.DONE
    version = alone.root / "weights" / "v00000003.f1"
    manifest = open_version(version, Manifest.from_bytes((version / MANIFEST_NAME).read_bytes()).digest())
    verify_tensors(version, manifest)
    assert manifest.is_adapter
    assert {entry.shard for entry in manifest.tensors.values()} == {"adapter_model.safetensors"}
    assert manifest.frozen.keys() == load_file(alone.model / "model.safetensors").keys()
    scored = PeftModel.from_pretrained(whole_model(alone.model), version)
    merged = whole_model(alone.root / "model")
    ids = torch.tensor([manifest.canary.token_ids])
    for model in (scored, merged):
        with torch.no_grad():
            logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])
        np.testing.assert_allclose(logprobs.squeeze(1).numpy(), manifest.canary.logprobs[1:], atol=1e-5)
    alone.redis.flush()
    trainer = {**SPEC, "procPerNode": 2, "microBatchTokens": 64}
    pair = make_world("pair", algorithm=algorithm, optimizer=optimizer, spec={"trainer": trainer})
    pair.fill(range(9), staleness=9)
    gang = pair.gang(2)
    try:
        assert gang.wait(150.0) == ExitCode.DONE, (pair.root / "trainer.log").read_text()[-4000:]
    finally:
        if gang.poll() is None:
            gang.kill()
    for field in ("loss", "grad_norm", "reference_kl"):
        assert losses(pair, field) == pytest.approx(losses(alone, field), abs=1e-5), field
    assert losses(alone, "reference_kl")[0] == pytest.approx(0.0, abs=1e-6)
    assert losses(alone, "reference_kl")[2] > 1e-6
