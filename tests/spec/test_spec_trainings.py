"""A job has the block of its training, no other's, and no roles that the training doesn't have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from areal.plan.role_specs import counts
from areal.spec import RLJob, check, load_job
from areal.spec.explain import explain
from support import tiny_job

TEACHER = {"teacher": {"path": "teacher"}}
SFT = {"training": "SFT", "sft": {"batchSize": 4}, "algorithm": None, "rollout": None, "recipe": None}


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
        ({**SFT, "sft": None}, "training-block"),
        ({**SFT, "dpo": {"batchSize": 4}}, "training-block"),
        ({**SFT, "training": "RewardModel"}, "training-block"),
        ({**SFT, "rewardModel": {"batchSize": 4}}, "training-block"),
        ({**SFT, "distillation": {"batchSize": 4, **TEACHER}}, "training-block"),
        ({**SFT, "rollout": {"workers": 2}}, "training-without-roles"),
        ({**SFT, "sft": {"batchSize": 4, "epochs": 2, "maxSteps": 9}}, "epochs-or-steps"),
        ({**SFT, "trainer": {"microBatchTokens": 64}}, "supervised-micro-batch"),
        ({**SFT, "sft": {"batchSize": 4, "betas": [0.9, 1.0]}}, "supervised-betas"),
        (
            {**SFT, "training": "DPO", "sft": None, "dpo": {"batchSize": 4, "loss": "ipo", "labelSmoothing": 0.1}},
            "smoothing-of-sigmoid",
        ),
        (
            {
                **SFT,
                "training": "Distillation",
                "sft": None,
                "distillation": {"batchSize": 4, "teacherShare": 0.1, **TEACHER},
            },
            "share-of-jsd",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(tmp_path: Path, changes: dict[str, Any], rule: str) -> None:
    assert rule in {finding.rule for finding in check(job(tmp_path, **changes))}
