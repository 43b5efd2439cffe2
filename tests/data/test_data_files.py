"""Data files give their values as they were written."""

from __future__ import annotations

import gzip
import io
import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
import zstandard
from areal.data import HuggingFaceSource, JsonlSource, prepare
from areal.data.adapters.files import read_file
from areal.data.adapters.hugging_face import files_of
from areal.errors import DataError

ROWS = [
    {"prompt": "1+1=", "answer": "007"},
    {"prompt": "date?", "answer": "2024-01-02"},
    {"prompt": "x", "answer": "1e3"},
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CSV = b'\xef\xbb\xbfprompt,answer\n1+1=,007\ndate?,2024-01-02\n"x",1e3\n'


def parquet(rows: list[dict]) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    out = io.BytesIO()
    writer.write_table(pyarrow.Table.from_pylist(rows), out)
    return out.getvalue()


FILES = {
    "lines.jsonl": LINES,
    "lines.jsonl.gz": gzip.compress(LINES[:60], mtime=0) + gzip.compress(LINES[60:], mtime=0),
    "lines.jsonl.zst": zstandard.compress(LINES[:60]) + zstandard.compress(LINES[60:]),
    "array.json": json.dumps(ROWS).encode(),
    "wrapped.json": json.dumps({"version": 1, "data": ROWS}).encode(),
    "lines.json": LINES,
    "table.csv": CSV,
    "table.csv.gz": gzip.compress(CSV, mtime=0),
    "table.tsv": CSV.replace(b",", b"\t"),
    "table.parquet": None,
}


@pytest.mark.parametrize("name", FILES)
def test_texts_stay_texts_in_every_kind_of_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name] or parquet(ROWS))
    assert [row for _, row, _ in read_file(path)] == ROWS
    assert list(prepare(JsonlSource(path), tmp_path / "out")) == ROWS
    assert list(prepare(HuggingFaceSource(str(path)), tmp_path / "hub")) == ROWS


def test_shards_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in (1, 0, 2):
        (tmp_path / f"train-{number}.jsonl").write_text(json.dumps(ROWS[number]))
    (tmp_path / "train-notes.md").write_text("no data")
    source = HuggingFaceSource(str(tmp_path / "train-*"))
    assert [file.name for file in files_of(source)] == ["train-0.jsonl", "train-1.jsonl", "train-2.jsonl"]
    assert list(prepare(source, tmp_path / "out")) == ROWS


def test_nested_columns_are_named_by_a_path(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1", "reward_model": {"ground_truth": "2"}}))
    source = HuggingFaceSource(str(tmp_path / "rows.jsonl"), columns={"gold": "reward_model.ground_truth"})
    (row,) = prepare(source, tmp_path / "out", required=("gold", "reward_model.ground_truth"))
    assert row["gold"] == "2"
    with pytest.raises(DataError, match=r'no column "reward_model\.gold"'):
        prepare(HuggingFaceSource(source.path, columns={"gold": "reward_model.gold"}), tmp_path / "other")


def test_what_json_has_no_word_for_is_text(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    path.write_bytes(parquet([{"price": Decimal("1.50"), "day": date(2024, 1, 2), "list": [Decimal("2")]}]))
    ((_, row, _),) = read_file(path)
    assert row == {"price": "1.50", "day": "2024-01-02", "list": ["2"]}
    path.write_bytes(parquet([{"image": b"\x89PNG"}]))
    with pytest.raises(DataError, match=r"table.parquet:0: a column holds bytes"):
        list(read_file(path))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"prompt": "1"}\n{"prompt": ', r"a.jsonl:2: not JSON"),
        ("a.json", b'[{"prompt": "1"}, 2]', r"a.json:1: a row is a JSON object"),
        ("a.json", b"5", r"a.json: it holds a int, no rows"),
        ("a.csv", b"prompt,answer\n1,2,3\n", r"a.csv:2: 3 values for 2 columns"),
        ("a.csv", b'prompt,answer\n"1,2\n', r"a.csv:2: unexpected end of data"),
        ("a.csv", b"prompt,prompt\n1,2\n", r"several columns are named prompt"),
        ("a.csv", "prompt\né\n".encode("latin-1"), r"no UTF-8"),
        ("a.jsonl.gz", gzip.compress(LINES, mtime=0)[:40], r"cannot read .*a.jsonl.gz"),
        ("a.jsonl.zst", b"no frame", r"cannot read .*a.jsonl.zst"),
        ("a.parquet", b"PAR1 not", r"cannot read .*a.parquet"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as refused:
        list(read_file(tmp_path / name))
    assert refused.value.fix


@pytest.mark.parametrize("row", [{"messages": [{"role": "user", "content": "1"}]}, {"prompt": "1", "choices": ["a"]}])
def test_a_single_row_with_a_list_in_it_is_that_row(row: dict, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(row))
    assert [found for _, found, _ in read_file(tmp_path / "a.json")] == [row]
