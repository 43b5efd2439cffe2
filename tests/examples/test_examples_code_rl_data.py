"""The data of the programming example: right programs, tests that tell wrong ones apart, disjoint splits."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from areal_judge.judge.formats.registry import detect, suite_of
from areal_judge.judge.values import CallSuite

ROOT = Path(__file__).resolve().parents[2]
DIGESTS = {
    "heldout.jsonl": "e9a5ee60f5ee994d",
    "sft.jsonl": "76f7163dd7156d18",
    "train.jsonl": "2a0433ea78f83c7f",
    "validation.jsonl": "fe93efa6d30bdba7",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("code") / "deep"
    subprocess.run([sys.executable, str(ROOT / "examples/code_rl_data.py"), str(out)], check=True, timeout=60)
    return out


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_code_rl_data", ROOT / "examples/code_rl_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(data: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (data / f"{name}.jsonl").read_text().splitlines()]


def function(program: str) -> Callable[[int], int]:
    names: dict[str, Any] = {}
    exec(program, names)  # a program of the example itself
    made: Callable[[int], int] = names["f"]
    return made


def passes(program: str, tests: dict[str, Any]) -> bool:
    f = function(program)
    return all(f(*given) == due for given, due in zip(tests["inputs"], tests["outputs"], strict=True))


def test_there_are_as_many_rows_as_the_job_needs(data: Path) -> None:
    assert {name: len(rows(data, name)) for name in ("train", "sft", "validation", "heldout")} == {
        "train": 12_000, "sft": 16_000, "validation": 150, "heldout": 200,
    }  # fmt: skip


def test_rows_are_suites_of_eight_calls(data: Path) -> None:
    for row in rows(data, "train")[:200]:
        assert detect(row) == "apps"
        suite = suite_of(row)
        assert isinstance(suite, CallSuite)
        assert (suite.entry_point, len(suite.cases)) == ("f", 8)


def test_careful_programs_pass_and_a_third_of_the_hasty_ones_does(example: ModuleType) -> None:
    rng = Random(1)
    tasks = [example.draw(rng) for _ in range(1000)]
    suites = [example.tests(task, rng) for task in tasks]
    assert all(passes(example.program(task), suite) for task, suite in zip(tasks, suites, strict=True))
    hasty = sum(passes(example.program(task, hasty=True), suite) for task, suite in zip(tasks, suites, strict=True))
    assert 0.28 < hasty / 1000 < 0.40


def test_no_constant_passes(data: Path) -> None:
    assert all(len(set(map(str, row["input_output"]["outputs"]))) > 1 for row in rows(data, "train"))


def test_validation_programs_are_right_ones(data: Path, example: ModuleType) -> None:
    checked = {row["prompt"]: row["answer"] for row in rows(data, "validation")}
    rng = Random(3)
    found = 0
    for _ in range(20_000):
        task = example.draw(rng)
        if (answer := checked.get(example.words(task))) is not None:
            found += 1
            assert passes(answer, example.tests(task, rng))
    assert found > 50


def test_no_held_out_task_is_trained_or_validated_on(data: Path) -> None:
    prompts = {name: {row["prompt"] for row in rows(data, name)} for name in ("train", "sft", "validation", "heldout")}
    assert len(prompts["heldout"]) == 200
    for name in ("train", "sft", "validation"):
        assert not prompts["heldout"] & prompts[name]
    assert not prompts["validation"] & (prompts["sft"] | prompts["train"])


def test_the_files_are_the_same_on_every_machine(data: Path) -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in sorted(data.glob("*.jsonl"))}
    assert found == DIGESTS
