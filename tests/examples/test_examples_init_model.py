"""`areal init-model`: a small model, made once, never half."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from areal.errors import ConfigError, ExitCode  # noqa: E402
from areal.workflow.tokenizer import Tokenizer  # noqa: E402
from areal_trainer.init_model import EOS, init_model, main  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return init_model(tmp_path_factory.mktemp("models") / "tiny").path


def test_the_model_is_a_million_parameters_and_loads_like_any_other(model: Path) -> None:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model)
    assert loaded.config.model_type == "qwen3"
    assert 0.9e6 < sum(parameter.numel() for parameter in loaded.parameters()) < 1.1e6
    assert loaded.generation_config.eos_token_id == EOS
    assert sorted(path.name for path in model.parent.iterdir()) == ["tiny"]


def test_its_tokenizer_has_a_token_a_character_with_and_without_transformers(model: Path) -> None:
    slow = transformers.AutoTokenizer.from_pretrained(model)
    fast = Tokenizer.from_dir(model)
    text = "3142=\n Why not? {x}~"
    assert len(slow.encode(text)) == len(text)
    assert slow.encode(text) == fast.encode(text).tolist()
    assert fast.decode(fast.encode(text)) == text
    assert slow.decode(slow.encode(text)) == text
    assert (slow.eos_token_id, slow.pad_token_id, slow.bos_token_id) == (2, 0, 1)
    assert slow.encode("é") == [3]
    assert fast.decode([*fast.encode("12").tolist(), EOS]) == "12"


def test_the_same_seed_finds_the_model_another_makes_it_anew(tmp_path: Path) -> None:
    weights = init_model(tmp_path / "one").path / "model.safetensors"
    before = (weights.stat().st_ino, weights.read_bytes())
    assert init_model(tmp_path / "one").cached
    assert weights.stat().st_ino == before[0]
    assert not init_model(tmp_path / "one", seed=1).cached
    assert weights.read_bytes() != before[1]


def test_somebody_elses_directory_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.safetensors").write_text("precious")
    with pytest.raises(ConfigError, match="not made here"):
        init_model(tmp_path / "mine")
    assert main(["--out", str(tmp_path / "mine")]) == ExitCode.CONFIG
    assert "not made here" in capsys.readouterr().err
    assert (tmp_path / "mine" / "model.safetensors").read_text() == "precious"
