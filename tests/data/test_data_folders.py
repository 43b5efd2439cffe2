"""Folders of datasets: as the hub has them, as `save_to_disk` writes them, arrow files and patterns of shards."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.data import HuggingFaceSource, prepare
from areal.data.adapters.hugging_face import files_of
from areal.errors import DataError

CARD = """---
license: mit
configs:
- config_name: main
  data_files:
  - split: train
    path: main/part-*
  - split: test
    path: [main/held.jsonl]
- config_name: other
  data_files: other/*.csv
---
# A dataset
"""


def folder(tmp_path: Path, card: str = "", **files: str) -> Path:
    root = tmp_path / "hub"
    for name, text in {"README.md": card, ".cache/train.jsonl": "{}", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def prompts(source: HuggingFaceSource, out: Path) -> list[str]:
    return [row["prompt"] for row in prepare(source, out)]


def row(text: str) -> str:
    return f'{{"prompt": "{text}", "answer": "007"}}\n'


def test_a_card_says_which_files_a_config_and_split_has(tmp_path: Path) -> None:
    root = folder(tmp_path, CARD, **{
        "main/part-1.jsonl": row("b"), "main/part-0.jsonl": row("a"), "main/held.jsonl": row("h"),
        "other/x.csv": "prompt,answer\nc,007\n",
    })  # fmt: skip
    assert prompts(HuggingFaceSource(str(root), name="main"), tmp_path / "1") == ["a", "b"]
    assert prompts(HuggingFaceSource(str(root), name="main", split="test"), tmp_path / "2") == ["h"]
    other = prepare(HuggingFaceSource(str(root), name="other"), tmp_path / "3")
    assert list(other) == [{"prompt": "c", "answer": "007"}], "read as texts, not by a library that guesses types"


@pytest.mark.parametrize(
    ("files", "split", "found"),
    [
        (["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "data/test-0.jsonl"], "train", [0, 1]),
        (["data/train-0.jsonl", "data/test-0.jsonl"], "test", [1]),
        (["train/x.jsonl", "validation/x.jsonl"], "validation", [1]),
        (["one.jsonl", "two.jsonl"], "train", [0, 1]),
    ],
)
def test_without_a_card_names_say_which_split_a_file_is(
    files: list[str], split: str, found: list[int], tmp_path: Path
) -> None:
    root = folder(tmp_path, **{name: row(name) for name in files})
    listed = files_of(HuggingFaceSource(str(root), split=split))
    assert [file.relative_to(root).as_posix() for file in listed] == [files[place] for place in found]


def test_a_split_that_no_file_has_is_refused_with_what_is_there(tmp_path: Path) -> None:
    root = folder(tmp_path, **{"train-0.jsonl": row("a")})
    with pytest.raises(DataError, match=r"split 'test' \(found train-0\.jsonl\)"):
        prepare(HuggingFaceSource(str(root), split="test"), tmp_path / "out")


def test_a_pattern_may_stand_for_folders_and_has_to_fit_a_file(tmp_path: Path) -> None:
    root = folder(tmp_path, **{"a/1.jsonl": row("1"), "b/1.jsonl": row("2"), "b/notes.md": "none"})
    assert prompts(HuggingFaceSource(f"{root}/*/1.*"), tmp_path / "out") == ["1", "2"]
    with pytest.raises(DataError, match="no data file fits"):
        prepare(HuggingFaceSource(f"{root}/*/2.*"), tmp_path / "none")


def test_a_column_that_a_later_shard_lacks_is_refused_there(tmp_path: Path) -> None:
    root = folder(tmp_path, **{"train-0.jsonl": '{"question": "1"}', "train-1.jsonl": '{"problem": "2"}'})
    source = HuggingFaceSource(str(root), columns={"prompt": "question"})
    with pytest.raises(DataError, match=r'train-1\.jsonl:1: no column "question"'):
        prepare(source, tmp_path / "out")


def test_saved_datasets_and_arrow_files_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"prompt": "1", "answer": "007"}, {"prompt": "2", "answer": "1e3"}])
    datasets.DatasetDict({"train": rows, "test": rows.select([1])}).save_to_disk(str(tmp_path / "saved"))
    saved = HuggingFaceSource(str(tmp_path / "saved"), split="test")
    assert list(prepare(saved, tmp_path / "1")) == [{"prompt": "2", "answer": "1e3"}]
    (arrow,) = (tmp_path / "saved" / "train").glob("*.arrow")
    assert [row["answer"] for row in prepare(HuggingFaceSource(str(arrow)), tmp_path / "2")] == ["007", "1e3"]
