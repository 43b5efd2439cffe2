"""Chains of the example jobs, small: SFT → DPO, and SFT → a reward model → GRPO by its scores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.job_run import ROOT, SMALL, JobRun

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(900)]

PAIRS = 1_920  # thirty steps


@pytest.fixture
def pairs(digits: Path, tmp_path: Path) -> dict[str, Path]:
    """Some of the examples' pairs, by split."""
    made = {}
    for split in ("train", "heldout"):
        made[split] = tmp_path / f"{split}.jsonl"
        command = [sys.executable, "examples/digits_pairs.py", f"data/digits/{split}.jsonl", str(made[split])]
        subprocess.run(command, cwd=ROOT, check=True, timeout=60)
        made[split].write_text("".join(made[split].read_text().splitlines(keepends=True)[:PAIRS]))
    return made


def test_dpo_and_a_reward_model_go_on_from_the_model_of_sft_and_rl_from_the_scores(
    pairs: dict[str, Path], tmp_path: Path
) -> None:
    def on_pairs(name: str, *more: str) -> JobRun:
        given = [f"dataset.train.jsonl={pairs['train']}", *more]
        return JobRun(ROOT / f"examples/{name}.yaml", tmp_path / name, given).start()

    dpo = on_pairs("dpo")
    scores = on_pairs("reward_model", f"dataset.evaluation.jsonl={pairs['heldout']}")
    try:
        assert scores.finish(400) == 0, scores.output
        assert dpo.finish(400) == 0, dpo.output
    finally:
        scores.stop()
        dpo.stop()
    assert (dpo.audit()["used"], scores.audit()["used"]) == ([1, 1], [2, 2])
    margins = [row["margin"] for row in dpo.metrics()]
    assert margins[-1] > margins[0] == pytest.approx(0.0, abs=1e-3)
    measured = scores.summary()["heldOut"]
    assert measured["last"] >= 0.6, "better than chance on pairs of digits that it has not seen"

    given = [*SMALL, "algorithm.maxSteps=6", "evaluation.intervalSteps=6"]
    model = f"reward.model.path={scores.run_dir / 'model'}"
    scored = JobRun(ROOT / "examples/scored_rl.yaml", tmp_path / "scored", [*given, model]).start()
    try:
        assert scored.finish(200) == 0, scored.output
    finally:
        scored.stop()
    summary = scored.summary()
    assert (summary["steps"], summary["groups"]["lost"], summary["groups"]["duplicated"]) == (6, 0, 0)
    assert summary["groups"]["trained"] == 6 * 16
    rewards = {row["reward_mean"] for row in scored.metrics()}
    assert len(rewards) == 6, "a model's scores of other answers, not a constant"
    assert not rewards & {0.0, 1.0}
