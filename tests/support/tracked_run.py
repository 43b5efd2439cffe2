"""A run directory with metrics and evaluations, as an experiment tracker is sent them."""

from __future__ import annotations

import json
from pathlib import Path

from areal.plan.resolved import Endpoints, ResolvedJob
from areal.spec.job import RLJob

UID = "digits-1a2b"
EVALUATION = (
    ("evaluation/mean", 0.5), ("evaluation/rows", 3), ("evaluation/avg@4", 0.25), ("evaluation/<hard>/mean", 0.125),
)  # fmt: skip


def make_tracked_run(root: Path) -> Path:
    """Three steps, an evaluation, a job with a secret; nothing says that it has ended."""
    root.mkdir(parents=True)
    spec = {
        "model": {"path": str(root / "model")},
        "dataset": {"train": {"jsonl": "rows.jsonl"}},
        "algorithm": {"name": "GRPO", "groupSize": 4, "batchSize": 3, "maxSteps": 5, "maxStaleness": 2},
        "optimizer": {"learningRate": 1e-2},
        "podTemplate": {"trainer": {"env": [{"name": "OPENAI_API_KEY", "value": "hunter2hunter2"}]}},
    }  # fmt: skip
    job = RLJob.model_validate(
        {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "digits"}, "spec": spec}
    )
    ResolvedJob(
        job=job, uid=UID, digest="0", run_dir=root, model_path=root / "model", tokenizer_path=root / "model",
        dataset=job.spec.dataset, endpoints=Endpoints(controller="127.0.0.1:1", redis=None), ports={},
    ).save()  # fmt: skip
    (root / "metrics.jsonl").write_text("".join(step_line(step, step / 8) for step in range(3)))
    (root / "evaluations.jsonl").write_text(evaluation_line(2))
    return root


def step_line(step: int, reward: float) -> str:
    """A line of the trainer: three figures, and what is none."""
    row = {
        "step": step, "fence": 1, "policy_id": f"{step + 1}.f1", "reward_mean": reward, "loss": None, "tokens": 60,
        "seconds": {"wait": 0.5}, "at": 1000.0 + 2 * step,
    }  # fmt: skip
    return json.dumps(row) + "\n"


def evaluation_line(version: int) -> str:
    """A line of the controller: `EVALUATION`."""
    row = {
        "name": f"{version}.f1-ab", "version": version, "rows": 3, "mean": 0.5, "avg@4": 0.25,
        "sets": {"<hard>": {"mean": 0.125}}, "at": 1001.0 + 2 * version,
    }  # fmt: skip
    return json.dumps(row) + "\n"
