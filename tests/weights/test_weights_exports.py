"""Exports: what stays, what `best` links to, that a crash leaves nothing half and a reader keeps what it reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from areal.errors import InfraError
from areal.values.policy import PolicyId
from areal.weights.exports import (
    Exports,
    ExportScore,
    best_of,
    exported,
    exported_steps,
    link_version,
    reading,
    retained,
)
from areal.weights.manifest import MANIFEST_NAME
from areal.weights.publish import publish


def scored(**figures):
    return {int(step[1:]): ExportScore(figure) for step, figure in figures.items()}


@pytest.fixture
def exports(tmp_path):
    return Exports(tmp_path / "exports", interval=10, keep=2, evaluations=tmp_path / "evaluations.jsonl")


def write(text):
    def made(target):
        target.mkdir()
        (target / "config.json").write_text(text)

    return made


def evaluated(tmp_path, *rows):
    with (tmp_path / "evaluations.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("steps", "scores", "keep", "stay"),
    [
        ([10, 20, 30], {}, 2, {20, 30}),
        ([10, 20, 30], scored(s10=0.9, s20=0.5, s30=0.7), 1, {10, 30}),
        ([10, 20, 30, 40, 50], scored(s10=0.1), 1, {10, 20, 50}),  # 20 waits for its evaluation
        ([10, 20, 30], scored(s20=0.5, s10=0.5), 1, {10, 30}),  # of equals the earlier
        ([10, 20], {10: ExportScore(2.0, True), 20: ExportScore(3.0, True)}, 1, {10, 20}),
    ],
)
def test_the_newest_the_best_and_what_waits_for_a_score_stay(steps, scores, keep, stay):
    assert retained(steps, scores, keep) == stay


def test_a_lower_loss_is_better():
    assert best_of([10, 20, 30], {10: ExportScore(2.0, True), 20: ExportScore(1.0, True)}) == 20
    assert best_of([10, 20], {30: ExportScore(1.0)}) is None


def test_best_follows_the_evaluations_and_survives_the_newer(tmp_path, exports):
    for step, mean in ((10, 0.2), (20, 0.6), (30, 0.5), (40, 0.4)):
        exports.add(PolicyId(step, 1), write(str(step)))
        evaluated(tmp_path, {"version": step, "mean": mean})
    exports.tidy()
    root = tmp_path / "exports"
    assert exported_steps(root) == [20, 30, 40]
    assert (root / "best" / "config.json").read_text() == "20"
    evaluated(tmp_path, {"version": 20, "mean": 0.1})  # measured again after a rollback
    exports.tidy()
    assert (os.readlink(root / "best"), exported_steps(root)) == ("step-30", [30, 40])


def test_only_steps_of_the_interval_are_exported_and_a_newer_trainer_s_weights_replace_an_older_one_s(
    tmp_path, exports
):
    assert [exports.lacks(PolicyId(step, 1)) for step in (0, 5, 10)] == [False, False, True]
    exports.add(PolicyId(10, 1), write("first"))
    assert not exports.lacks(PolicyId(10, 1))
    assert exports.lacks(PolicyId(10, 2))
    exports.add(PolicyId(10, 2), write("second"))
    directory = tmp_path / "exports" / "step-10"
    assert (exported(directory).policy, (directory / "config.json").read_text()) == ("10.f2", "second")


def test_what_fails_leaves_nothing_and_the_next_one_sweeps_what_a_crash_left(tmp_path, exports):
    def full(target):
        target.mkdir()
        raise OSError(28, "No space left on device")

    with pytest.raises(InfraError, match="No space left"):
        exports.add(PolicyId(10, 1), full)
    root = tmp_path / "exports"
    assert list(root.iterdir()) == []
    (root / ".tmp-step-10-dead").mkdir()
    (root / "step-20").mkdir()  # without its marker it is no export
    assert exported_steps(root) == []
    exports.add(PolicyId(10, 2), write("whole"))
    assert sorted(path.name for path in root.iterdir()) == ["step-10", "step-20"]


def test_what_another_process_reads_is_neither_removed_nor_replaced(tmp_path, exports):
    root = tmp_path / "exports"
    exports.add(PolicyId(10, 1), write("read"))
    code = "import sys; from pathlib import Path; from areal.weights.exports import reading\n"
    code += "with reading(Path(sys.argv[1])) as held: print(held.name, flush=True); sys.stdin.read()"
    reader = subprocess.Popen(
        [sys.executable, "-c", code, str(root / "step-10")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout.readline() == "step-10\n"
    assert exports.add(PolicyId(10, 2), write("newer")) is None
    for step in (20, 30):
        exports.add(PolicyId(step, 2), write("later"))
    assert exported_steps(root) == [10, 20, 30]
    assert (root / "step-10" / "config.json").read_text() == "read"
    reader.communicate("", timeout=60)
    exports.tidy()
    assert exported_steps(root) == [20, 30]


def test_reading_follows_best_and_takes_plain_directories_as_they_are(tmp_path, exports):
    exports.add(PolicyId(10, 1), write("10"))
    evaluated(tmp_path, {"version": 10, "mean": 1.0})
    exports.tidy()
    with reading(tmp_path / "exports" / "best") as held, reading(tmp_path) as plain:
        assert (held.name, plain) == ("step-10", tmp_path.resolve())


def test_a_published_version_is_exported_without_copying_its_bytes(tmp_path):
    version = publish(
        tmp_path / "weights", PolicyId(10, 1), [("w", "F32", (1,), np.ones(1, np.float32))], None,
        {"config.json": b"{}"},
    ).path  # fmt: skip
    link_version(version, tmp_path / "export")
    assert {path.name for path in (tmp_path / "export").iterdir()} == {"config.json", "model.safetensors"}
    assert (tmp_path / "export" / "model.safetensors").stat().st_ino == (version / "model.safetensors").stat().st_ino
    assert (version / MANIFEST_NAME).exists()
