"""The quickstart's data: right answers, disjoint splits, the same everywhere."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIGESTS = {
    "heldout.jsonl": "1d36a5a583120495",
    "sft.jsonl": "f4f9fea6772bef3c",
    "train.jsonl": "030de77930e3bc7c",
    "validation.jsonl": "543cf8d406293dd4",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("digits") / "deep" / "digits"
    subprocess.run([sys.executable, str(ROOT / "examples/digits_data.py"), str(out)], check=True, timeout=60)
    return out


def rows(data: Path, name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (data / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("name", "count"), [("train", 20_000), ("sft", 12_000), ("validation", 500), ("heldout", 500)])
def test_every_answer_is_its_question_sorted(data: Path, name: str, count: int) -> None:
    made = rows(data, name)
    assert len(made) == count
    for row in made:
        question = row["prompt"].removesuffix("=")
        assert row["prompt"].endswith("=")
        assert 3 <= len(question) <= 6
        assert row["answer"] == "".join(sorted(question))


def test_no_held_out_multiset_is_trained_or_validated_on(data: Path) -> None:
    answers = {name: {row["answer"] for row in rows(data, name)} for name in ("train", "sft", "validation", "heldout")}
    for name in ("train", "sft", "validation"):
        assert not answers["heldout"] & answers[name]
    assert not answers["validation"] & answers["sft"]


def test_held_out_questions_are_distinct_and_of_all_lengths(data: Path) -> None:
    questions = [row["prompt"] for row in rows(data, "heldout")]
    assert len(set(questions)) == 500
    lengths = [len(question) - 1 for question in questions]
    assert all(lengths.count(length) > 60 for length in (3, 4, 5, 6))


def test_the_files_are_the_same_on_every_machine(data: Path) -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in sorted(data.glob("*.jsonl"))}
    assert found == DIGESTS
