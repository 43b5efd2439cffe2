"""The text part of a model of images and text: trained, published by the files' names, exported with the rest."""

import numpy as np
import pytest
import torch
from areal.engine.model_config import ModelConfig
from areal.engine.module_model import ModuleModel
from areal.engine.weights import read_tensors
from areal.errors import DataError
from areal.values.policy import PolicyId
from areal.weights.adapter import AdapterConfig, base_checksums
from areal.weights.exports import link_version
from areal.weights.publish import publish
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.optimizer import local
from areal_trainer.engine.self_check import check_packing
from areal_trainer.publish.exporter import carry_untrained, merge, side_files, sources
from peft import PeftModel
from safetensors.torch import load_file
from support.lora_parts import exported, micros_of, scores, train
from support.publishing_ranks import CANARY
from support.trainer_parts import batch
from transformers import AutoConfig, AutoModelForImageTextToText

TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "patch_size": 7, "out_hidden_size": 32,
    "num_position_embeddings": 16,
}  # fmt: skip


@pytest.fixture(params=["qwen3_5", "qwen3_5_moe"])
def start(request, tmp_path):
    torch.manual_seed(2)
    config = AutoConfig.for_model(request.param, text_config=TEXT, vision_config=VISION)
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(tmp_path / "start")
    return tmp_path / "start"


def test_an_export_is_the_whole_model_with_the_trained_text(start, tmp_path, ranks):
    engine = PolicyEngine(start, ModelOptions(), ranks)
    check_packing(engine, np.arange(1, 40), None)
    began = load_file(start / "model.safetensors")
    with torch.no_grad():
        for parameter in engine._parameters.values():
            parameter.mul_(2)
    version = publish(tmp_path / "weights", PolicyId(1, 1), sources(engine.export()), CANARY, side_files(start, start))
    link_version(version.path, tmp_path / "export")
    carry_untrained(start, tmp_path / "export")
    untrained = tmp_path / "export" / "model-untrained.safetensors"
    assert untrained.stat().st_mode == (start / "config.json").stat().st_mode, "whoever reads the model reads all of it"
    model, told = AutoModelForImageTextToText.from_pretrained(
        tmp_path / "export", dtype=torch.float32, output_loading_info=True
    )
    assert not {name: names for name, names in told.items() if names}, "every tensor has its name and shape"
    model.save_pretrained(tmp_path / "again")
    ended = load_file(tmp_path / "again" / "model.safetensors")
    assert set(ended) == set(began)
    for name, tensor in ended.items():
        factor = 1 if "visual" in name else 2
        torch.testing.assert_close(tensor, began[name] * factor, rtol=0, atol=0, msg=name)
    assert any("visual" in name for name in ended)


def test_the_embedded_engine_serves_what_is_published_of_it(start, tmp_path, ranks):
    trainer = PolicyEngine(start, ModelOptions(), ranks)
    with torch.no_grad():
        for parameter in trainer._parameters.values():
            parameter.mul_(2)
    version = publish(tmp_path / "weights", PolicyId(1, 1), sources(trainer.export()), CANARY, side_files(start, start))
    model = ModuleModel(ModelConfig.from_dir(start), start, torch.float32)
    weights = model.build(version.path, read_tensors(version.path))
    assert model.checksums(weights) == base_checksums(version.path)
    ids = np.arange(40) % 20 + 1
    whole = model.prefill(weights, None, torch.from_numpy(ids)[None], None, hidden=True)[0, :-1].log_softmax(-1)
    alone = whole.gather(1, torch.from_numpy(ids)[1:, None])[-8:, 0].detach()
    torch.testing.assert_close(trainer.own_logprobs(ids, 8), alone, rtol=0, atol=1e-4)


def test_adapters_have_the_names_of_the_released_model_s_own_code(start, tmp_path, ranks):
    config = AdapterConfig(rank=3, alpha=12.0, targets=("q_proj", "k_proj", "v_proj", "o_proj"))
    engine, tokens = PolicyEngine(start, ModelOptions(adapter=config), ranks), batch(2, 4)
    for seed in range(2):
        assert train(engine, seed, rate=3e-2) > 0
    ours = engine.logprobs(micros_of(tokens), tokens.tokens)
    adapter = exported(engine, tmp_path / "adapter")
    merge(start, start, adapter, tmp_path / "merged")
    whole = AutoModelForImageTextToText.from_pretrained(start, dtype=torch.float32).eval()
    theirs = PeftModel.from_pretrained(whole, adapter)
    named = load_file(adapter / "adapter_model.safetensors")
    taken = [name for name, tensor in theirs.named_parameters() if ".lora_B." in name and tensor.abs().max() > 0]
    assert len(taken) == len(named) // 2 > 0
    assert all(".language_model.layers." in name for name in named)
    merged = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    edges = list(zip(tokens.offsets[:-1].tolist(), tokens.offsets[1:].tolist(), strict=True))
    for model in (theirs, merged):
        for (begin, end), score in zip(edges, scores(model, tokens), strict=True):
            chosen = torch.from_numpy(tokens.trainable())[begin + 1 : end]
            torch.testing.assert_close(ours[begin + 1 : end][chosen], score[chosen], atol=1e-4, rtol=1e-4)


def test_what_experts_have_too_is_no_target(start, ranks):
    has_experts = "moe" in AutoConfig.from_pretrained(start).model_type
    options = ModelOptions(adapter=AdapterConfig(4, 8, ("q_proj", "gate_proj")))
    if has_experts:
        with pytest.raises(DataError, match=r"a part of another tensor|no linear layers"):
            PolicyEngine(start, options, ranks)
    else:
        assert any("gate_proj" in name for name in PolicyEngine(start, options, ranks).trained())


@pytest.mark.parametrize("recompute", ["full", "selective", "offload"])
def test_what_is_computed_again_and_not_compiled_has_the_same_gradients(start, ranks, recompute, caplog):
    tokens = batch(3, 4, seed=5, shared=True)
    micros = rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64,
        pack_length=32,
    )  # fmt: skip

    def gradients(**options: str) -> dict[str, torch.Tensor]:
        engine = PolicyEngine(start, ModelOptions(**options), ranks)
        engine.accumulate(micros, lambda logprobs, entropy, micro: logprobs.sum() / tokens.tokens)
        return {name: local(each.grad) for name, each in engine._parameters.items()}

    expected = gradients()
    found = gradients(recompute=recompute, compile="blocks", attention="varlen")
    assert "aren't compiled" in caplog.text
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_ranks_that_share_a_sequence_are_refused(start, ranks, monkeypatch):
    engine = PolicyEngine(start, ModelOptions(), ranks)
    monkeypatch.setattr(ranks, "tensor_mesh", object())
    with pytest.raises(DataError, match=r"trainer.mesh.tensor isn't possible for .*, which has recurrent layers"):
        engine._refuse_cuts("has recurrent layers")
