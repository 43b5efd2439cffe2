"""A checkout in small: a job file with everything that it names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

JOB = """
apiVersion: areal.dev/v1alpha1
kind: RLJob
metadata: {name: tiny}
spec:
  model: {path: models/tiny}
  recipe: {file: recipe.py}
  dataset: {train: {jsonl: data/train.jsonl}}
  rollout: {maxConcurrentRollouts: 16, maxSampleTokens: 64, sampling: {maxNewTokens: 12}}
  algorithm: {name: GRPO, batchSize: 8, maxSteps: 4}
  optimizer: {learningRate: 1e-4}
"""
RECIPE = "def reward(prompt, completions, prompt_ids, completion_ids, **row):\n    return 1.0\n"

OVERRIDES = ("rollout.workers=2", "generation.replicas=2", "trainer.replicas=2", "trainer.procPerNode=2")


@dataclass(frozen=True)
class Workspace:
    """`root` is the current directory, the job file lies below it."""

    root: Path

    @property
    def job_file(self) -> Path:
        return self.root / "jobs" / "job.yaml"

    @property
    def recipe(self) -> Path:
        return self.root / "recipe.py"

    @property
    def run_dir(self) -> Path:
        return self.root / "runs" / "with a space"

    def fill(self) -> Workspace:
        model = self.root / "models" / "tiny"
        for directory in (model, self.root / "data", self.root / "jobs"):
            directory.mkdir(parents=True)
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            (model / name).write_text("{}")
        (self.root / "data" / "train.jsonl").touch()
        self.recipe.write_text(RECIPE)
        self.job_file.write_text(JOB)
        return self
