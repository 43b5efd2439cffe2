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
