"""A job has the block of its training, no other's, and no roles that the training doesn't have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from areal.plan.role_specs import counts
from areal.spec import RLJob, check, load_job
from areal.spec.explain import explain
from areal.spec.problems import SpecError
from support import tiny_job

TEACHER = {"teacher": {"path": "teacher"}}
NO_RL = {"algorithm": None, "rollout": None, "recipe": None}


def training(name: str, **fields: Any) -> dict[str, Any]:
    return {**NO_RL, "training": {"name": name, "batchSize": 4, **fields}}


SFT = training("SFT")


def job(folder: Path, **changes: Any) -> RLJob:
    path = tiny_job.write_job(folder, **changes)
    assert yaml.safe_load(path.read_text())["kind"] == "RLJob"
    return load_job(path)


def test_a_supervised_job_has_a_trainer_only(tmp_path: Path) -> None:
    sft = job(tmp_path, **SFT)
    assert check(sft) == []
    assert counts(sft.spec, None) == {"trainer": 1}
    assert dict(explain(sft))["the run"] == "each of the rows 1×"


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"algorithm": None}, "training-block"),
        ({**SFT, "training": None}, "training-block"),
        ({"training": SFT["training"]}, "training-block"),
        ({**SFT, "rollout": {"workers": 2}}, "training-without-roles"),
        (training("SFT", epochs=2, maxSteps=9), "epochs-or-steps"),
        ({**SFT, "trainer": {"microBatchTokens": 64}}, "supervised-micro-batch"),
        ({**SFT, "optimizer": {"betas": [0.9, 1.0]}}, "betas"),
        ({**SFT, "optimizer": {"learningRate": 1}}, "learning-rate-range"),
        (training("DPO", loss="ipo", labelSmoothing=0.1), "smoothing-of-sigmoid"),
        (training("Distillation", teacherShare=0.1, **TEACHER), "share-of-jsd"),
    ],
)
def test_what_does_not_belong_together_is_refused(tmp_path: Path, changes: dict[str, Any], rule: str) -> None:
    assert rule in {finding.rule for finding in check(job(tmp_path, **changes))}


@pytest.mark.parametrize(
    ("name", "rate"), [("SFT", 2e-5), ("DPO", 5e-7), ("RewardModel", 1e-5), ("Distillation", 2e-5)]
)
def test_each_training_has_its_own_usual_learning_rate(tmp_path: Path, name: str, rate: float) -> None:
    more = TEACHER if name == "Distillation" else {}
    block = training(name, **more)
    assert job(tmp_path, **block, optimizer=None).spec.optimizer.learning_rate == rate
    assert job(tmp_path, **block, optimizer={"warmupSteps": 1}).spec.optimizer.learning_rate == rate
    assert job(tmp_path, **block, optimizer={"learningRate": 1e-3}).spec.optimizer.learning_rate == 1e-3
    assert job(tmp_path, optimizer=None).spec.optimizer.learning_rate == 1e-6


def test_a_field_of_another_training_is_refused_and_a_training_without_a_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"spec\.training\.beta: unknown field"):
        job(tmp_path, **training("SFT", beta=0.1))
    with pytest.raises(SpecError, match=r"spec\.training\.name: missing: Which training: SFT, DPO"):
        job(tmp_path, **{**NO_RL, "training": {"batchSize": 4}})
    with pytest.raises(SpecError, match=r"spec\.training\.name: 'Sft' is unknown; did you mean SFT\?"):
        job(tmp_path, **training("Sft"))
