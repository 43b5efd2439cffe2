"""Whole runs with rows that can't be trained: a few cost their groups, a reward that always raises ends the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from areal.errors import ExitCode
from support.job_run import ROOT

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(600)]

LEAVES_NO_ROOM = '''
from areal.workflow import Episode, GenerationRequest, RolloutWorkflow, Sequence


class Long(RolloutWorkflow):
    """The prompts that begin with a 1 are as long as a whole sample."""

    name = "long"

    async def arun_episode(self, engine, row):
        ids = list(engine.prompt(row).ids) * (6 if row["prompt"].startswith("1") else 1)
        result = await engine.agenerate(GenerationRequest(ids))
        right = engine.tokenizer.decode(result.output_ids).strip() == row["answer"]
        return Episode([Sequence.of(ids, result, float(right))])
'''
RAISES = """
def reward(prompt, completions, prompt_ids, completion_ids, **row):
    return float(completions == row["solution"])
"""
RAISES_LATER = """
import sys

BEFORE = sys.modules["__main__"].__spec__.name == "areal.admit.recipe_probe"


def reward(prompt, completions, prompt_ids, completion_ids, **row):
    return 1.0 if BEFORE else float(completions == row["solution"])
"""


def write_job(folder: Path, recipe: str, workflow: str) -> str:
    """The quickstart with another recipe."""
    job = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    folder.mkdir()
    (folder / "recipe.py").write_text(recipe)
    job["spec"]["recipe"]["file"] = str(folder / "recipe.py")
    job["spec"]["rollout"]["workflow"] = workflow
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return str(path)


def test_rows_without_room_cost_their_groups_and_a_reward_that_raises_ends_its_run_in_words(start_job, tmp_path):
    small = ("algorithm.batchSize=8", "algorithm.groupSize=4", "algorithm.maxSteps=8", "evaluation.intervalSteps=8")
    refused = start_job(*small, job=write_job(tmp_path / "refused", RAISES, "rlvr"))
    assert refused.finish(timeout_s=240) == ExitCode.DATA
    assert "recipe.py:3: the recipe's reward raised KeyError: 'solution' (for " in refused.output
    assert "train.jsonl:1" in refused.output
    raising = start_job(*small, job=write_job(tmp_path / "raises", RAISES_LATER, "rlvr"))
    raising.wait_for("the stall", lambda: "[stalled]" in raising.output, timeout_s=240)
    run = start_job(*small, job=write_job(tmp_path / "long", LEAVES_NO_ROOM, "long"))
    assert run.finish(timeout_s=240) == 0, run.output[-4000:]
    summary = run.summary()
    assert (summary["status"], summary["steps"]) == ("Complete", 8)
    assert set(summary["groups"]["tombstoned"]) <= {"rejected", "ended"}
    assert summary["groups"]["tombstoned"]["rejected"] > 0
    assert run.audit()["lost"] == 0

    assert raising.finish(timeout_s=240) == ExitCode.DATA, raising.output[-4000:]
    said = raising.output.rpartition("data error [stalled]:")[2]
    assert said.startswith(" stalled for 5 s: ")
    assert "train.jsonl, row " in said
    assert ": the recipe's reward raised KeyError: 'solution' (recipe.py:8)" in said
    assert "correct the dataset, model or recipe" in said
    summary = raising.summary()
    assert (summary["status"], summary["steps"]) == ("Failed", 0)
    assert "KeyError: 'solution' (recipe.py:8)" in summary["cause"]["text"]
