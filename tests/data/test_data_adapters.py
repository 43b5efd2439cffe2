"""Hugging Face datasets, reasoning-gym tasks, and what the job file says of sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.data import HuggingFaceSource, JsonlSource, ReasoningGymSource, RecipeSource, prepare, source_from_spec
from areal.errors import ConfigError, DataError
from areal.spec.sources import DatasetSource

datasets = pytest.importorskip("datasets")
reasoning_gym = pytest.importorskip("reasoning_gym")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    data = datasets.Dataset.from_dict({"question": ["1+1?", "2+2?"], "answer": ["2", "4"]})
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


def test_a_saved_hugging_face_dataset_is_read_with_columns_renamed(saved: Path, tmp_path: Path) -> None:
    source = HuggingFaceSource(str(saved), columns={"prompt": "question"})
    rows = list(prepare(source, tmp_path / "out", required=("prompt", "answer")))
    assert rows == [{"answer": "2", "prompt": "1+1?"}, {"answer": "4", "prompt": "2+2?"}]


def test_an_unknown_split_or_column_is_named(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no split"):
        prepare(HuggingFaceSource(str(saved), split="test"), tmp_path / "out")
    with pytest.raises(DataError, match=r'no column "quest".*found question, answer'):
        prepare(HuggingFaceSource(str(saved), columns={"prompt": "quest"}), tmp_path / "out")


def test_an_unreachable_dataset_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(Exception, match="no-such-dataset") as raised:
        prepare(HuggingFaceSource(str(tmp_path / "no-such-dataset")), tmp_path / "out")
    assert "local folder" in raised.value.fix
    assert not (tmp_path / "out").exists()


def test_reasoning_gym_rows_can_be_scored_by_their_task(tmp_path: Path) -> None:
    source = ReasoningGymSource("leg_counting", size=5, seed=3)
    rows = list(prepare(source, tmp_path / "out", required=("prompt", "answer")))
    again = list(prepare(source, tmp_path / "again"))
    task = reasoning_gym.create_dataset("leg_counting", size=5, seed=3)
    assert rows == again
    assert len(rows) == 5
    assert all(task.score_answer(row["answer"], row) == 1.0 for row in rows)


def test_a_misspelt_task_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no task") as raised:
        prepare(ReasoningGymSource("leg_counti", size=1), tmp_path / "out")
    assert "leg_counting" in raised.value.fix


def test_the_job_file_names_sources(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"

    def source(**given: object) -> object:
        return source_from_spec(DatasetSource.model_validate(given), base_dir=tmp_path, recipe=recipe, split="train")

    assert source(jsonl="a.jsonl") == JsonlSource(tmp_path / "a.jsonl")
    assert source(reasoningGym={"task": "maze", "size": 3}) == ReasoningGymSource("maze", 3, 0, {})
    assert source(recipe={}) == RecipeSource(recipe, "train")
    assert source(huggingFace={"path": "owner/name"}) == HuggingFaceSource("owner/name")
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert source(huggingFace={"path": "owner/name"}) == HuggingFaceSource(str(tmp_path / "owner/name"))


def test_two_sources_or_none_are_refused(tmp_path: Path) -> None:
    for given in (DatasetSource(), DatasetSource.model_validate({"jsonl": "a", "recipe": {}})):
        with pytest.raises(ConfigError, match="a dataset gives"):
            source_from_spec(given, base_dir=tmp_path, recipe=None, split="train")
