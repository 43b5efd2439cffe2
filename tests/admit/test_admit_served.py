"""What is said of a model that the embedded engine serves through its Hugging Face module."""

from __future__ import annotations

from pathlib import Path

from areal.admit.verdict import admit
from areal.spec import load_job
from support.module_models import make_module_model
from support.tiny_job import make_tiny_job, write_job


def test_a_family_without_functions_by_hand_is_served_slower_and_without_adapters(tmp_path: Path) -> None:
    make_tiny_job(tmp_path)
    model = make_module_model(tmp_path / "other", "gemma3_text", 0)
    for file in ("config.json", "model.safetensors", "generation_config.json"):
        (model / file).replace(tmp_path / "model" / file)
    verdict = admit(load_job(write_job(tmp_path)), tmp_path)
    assert not verdict.refused, verdict.findings
    assert "Gemma3ForCausalLM is served through its Hugging Face module: exact" in dict(verdict.read_as)["model"]
    adapted = admit(load_job(write_job(tmp_path, trainer={"lora": {"rank": 4}})), tmp_path)
    assert any("no adapters of a Gemma3ForCausalLM" in finding.message for finding in adapted.findings)


def judged(root: Path, family: str, **fields: object) -> tuple[str, str]:
    """Messages of errors of a job whose model is of this family, and what its model is read as."""
    make_tiny_job(root)
    model = make_module_model(root / "other", family, 0)
    for file in ("config.json", "model.safetensors", "generation_config.json"):
        (model / file).replace(root / "model" / file)
    verdict = admit(load_job(write_job(root, **fields)), root)
    return " ".join(finding.message for finding in verdict.findings), str(verdict.read_as)


def test_what_a_family_was_seen_not_to_do_is_refused_before_the_run(tmp_path: Path) -> None:
    errors, _ = judged(tmp_path, "qwen3_moe", trainer={"procPerNode": 2, "mesh": {"tensor": 2}})
    assert "tensor ranks refused: qwen3_moe's layers.0.mlp.experts" in errors
    errors, read_as = judged(tmp_path / "whole", "qwen3_moe")
    assert "refused" not in errors
    assert "tokens are trained with the experts that sampled them: 4 bytes each" in read_as
    assert "chooses experts anew" in judged(tmp_path / "off", "qwen3_moe", trainer={"routingReplay": False})[1]


def test_router_losses_are_for_mixtures_whose_routers_are_read(tmp_path: Path) -> None:
    asked = {"routerAuxCoefficient": 0.001}
    errors, _ = judged(tmp_path / "dense", "gemma3_text", trainer={"routerZCoefficient": 0.001})
    assert "the family gemma3_text, which has no experts" in errors
    errors, _ = judged(tmp_path / "sigmoid", "nemotron_h", trainer=asked)
    assert "the family nemotron_h, which has routers" in errors
    assert "router losses" not in judged(tmp_path / "softmax", "qwen3_moe", trainer=asked)[0]


def test_sinks_on_gpus_need_the_mask(tmp_path: Path) -> None:
    errors, _ = judged(tmp_path, "gpt_oss", trainer={"gpus": 1})
    assert "attention sinks are computed on GPUs by a mask alone" in errors
    errors, _ = judged(tmp_path / "dense", "gpt_oss", trainer={"gpus": 1, "attention": "dense"})
    assert "sinks" not in errors
