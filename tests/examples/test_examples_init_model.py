"""`areal init-model`: a small model, made once, never half."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from areal.errors import ConfigError, DataError, ExitCode  # noqa: E402
from areal.workflow.tokenizer import Tokenizer  # noqa: E402
from areal_trainer.init_model import MadeModel, init_model, main  # noqa: E402
from areal_trainer.tiny.architecture import EOS, make_model, make_tokenizer  # noqa: E402
from areal_trainer.tiny.supervised import Accuracy, accuracy, example  # noqa: E402


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A task that takes a few steps to learn: repeat the digit."""
    folder = tmp_path_factory.mktemp("rows")
    for name in ("sft", "validation"):
        made = [{"prompt": f"{n % 10}=", "answer": str(n % 10)} for n in range(64)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    return folder / "sft.jsonl", folder / "validation.jsonl"


@pytest.fixture(scope="module")
def made(rows: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> MadeModel:
    out = tmp_path_factory.mktemp("models") / "tiny"
    return init_model(out, *rows, until=0.05, quiet=True)


def test_the_model_is_a_million_parameters_and_loads_like_any_other(made: MadeModel) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(made.path)
    assert model.config.model_type == "qwen3"
    assert 0.9e6 < sum(parameter.numel() for parameter in model.parameters()) < 1.1e6
    assert model.generation_config.eos_token_id == EOS
    assert made.sampled >= 0.05
    assert sorted(path.name for path in made.path.parent.iterdir()) == ["tiny"]


def test_its_tokenizer_has_a_token_a_character_with_and_without_transformers(made: MadeModel) -> None:
    slow = transformers.AutoTokenizer.from_pretrained(made.path)
    fast = Tokenizer.from_dir(made.path)
    text = "3142=\n Why not? {x}~"
    assert len(slow.encode(text)) == len(text)
    assert slow.encode(text) == fast.encode(text).tolist()
    assert fast.decode(fast.encode(text)) == text
    assert slow.decode(slow.encode(text)) == text
    assert (slow.eos_token_id, slow.pad_token_id, slow.bos_token_id) == (2, 0, 1)
    assert slow.encode("é") == [3]
    assert fast.decode([*fast.encode("12").tolist(), EOS]) == "12"


def test_the_same_arguments_find_the_model_others_make_it_anew(made: MadeModel, rows: tuple[Path, Path]) -> None:
    weights = made.path / "model.safetensors"
    before = weights.stat().st_ino
    again = init_model(made.path, *rows, until=0.05, quiet=True)
    assert (again.cached, again.steps, again.sampled) == (True, made.steps, made.sampled)
    assert weights.stat().st_ino == before
    other = init_model(made.path, *rows, until=0.05, seed=1, quiet=True)
    assert not other.cached
    assert weights.stat().st_ino != before
    assert init_model(made.path, *rows, until=0.05, seed=1, quiet=True).cached


def test_somebody_elses_directory_is_left_alone(rows: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.safetensors").write_text("precious")
    with pytest.raises(ConfigError, match="not made here"):
        init_model(tmp_path / "mine", *rows, quiet=True)
    assert (tmp_path / "mine" / "model.safetensors").read_text() == "precious"


def test_a_goal_out_of_reach_leaves_nothing(rows: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"below 0\.9"):
        init_model(tmp_path / "out", *rows, until=0.9, max_steps=2, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_bad_rows_are_named(rows: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.jsonl"
    for text, message in (
        ('{"prompt": "1="}\n', 'bad.jsonl:1: column "answer"'),
        ('{"prompt": "é=", "answer": "1"}\n', "not printable ASCII"),
        ("", "has no rows"),
    ):
        bad.write_text(text)
        with pytest.raises(DataError, match=message):
            init_model(tmp_path / "out", bad, rows[1], quiet=True)
    arguments = ["--out", str(tmp_path / "out"), "--sft", str(tmp_path / "none"), "--validation", str(rows[1])]
    assert main(arguments) == ExitCode.DATA
    assert "no" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_accuracy_is_what_sampling_and_greedy_decoding_give() -> None:
    torch.manual_seed(0)
    encode = make_tokenizer().encode
    model = make_model(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # sharper, so that some answers are likely
    prompts = ["12=", "7=", "345=", "90="]
    ids = [torch.tensor([encode(prompt)]) for prompt in prompts]
    greedy = [model.generate(i, max_new_tokens=1, do_sample=False)[0, -1].item() for i in ids]
    examples = [example(encode, prompt, "") for prompt in prompts]
    right = [type(e)(e.prompt, (token,)) for e, token in zip(examples, greedy, strict=True)]
    wrong = [type(e)(e.prompt, ((token + 1) % 100,)) for e, token in zip(examples, greedy, strict=True)]
    with torch.no_grad():
        likely = [model(i).logits[0, -1].softmax(-1)[t].item() for i, t in zip(ids, greedy, strict=True)]
    measured = accuracy(model, right)
    assert measured.greedy == 1.0
    assert measured.sampled == pytest.approx(sum(likely) / 4, rel=1e-4)
    assert accuracy(model, wrong).greedy == 0.0
    assert accuracy(model, right[:2] + wrong[:2]).greedy == 0.5
    assert isinstance(measured, Accuracy)
