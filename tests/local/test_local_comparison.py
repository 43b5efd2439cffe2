"""Runs side by side: what differs in their jobs, and what came of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from areal.admit.cluster import resolve_for_pods
from areal.cli.main import app, guarded
from areal.cli.runs import compare
from areal.errors import ConfigError, ExitCode
from areal.local.comparison import nice_ticks, read_run
from areal.plan.resolved import ResolvedJob
from areal.spec import load_job
from areal.spec.locate import UNSET, differing_fields, spec_fields
from support.run_summary import run_summary

JOB = """
apiVersion: areal.dev/v1alpha1
kind: RLJob
metadata: {name: sums}
spec:
  model: {path: /models/m}
  dataset: {train: {jsonl: /data/train.jsonl}}
  reward: {verifier: exact}
  algorithm: {name: GRPO, batchSize: 4, maxSteps: 10}
"""


def make_run(root: Path, *overrides: str, rewards: tuple[float, ...] = (), status: str = "") -> Path:
    """A run directory with a resolved job, a step for each reward, and a summary when `status` is given."""
    root.mkdir()
    (root / "job.yaml").write_text(JOB)
    job = load_job(root / "job.yaml", overrides)
    resolve_for_pods(job, namespace="team", uid="u", recipe_source=None).model_copy(update={"run_dir": root}).save()
    rows = [
        {"step": step, "reward_mean": reward, "wall_s": 2.0, "seconds": {"wait": 0.5}, "groups": 4}
        for step, reward in enumerate(rewards)
    ]
    (root / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    if status:
        (root / "summary.json").write_text(json.dumps(run_summary(status=status, restarts={"trainer": 2})))
    return root


def fields_of(root: Path) -> dict[str, object]:
    return spec_fields(ResolvedJob.load(root).job)


def test_only_fields_that_differ_are_told_with_each_runs_value(tmp_path):
    first = fields_of(make_run(tmp_path / "a", "algorithm.maxStaleness=2"))
    second = fields_of(make_run(tmp_path / "b", "algorithm.maxStaleness=4", "trainer.hooks=/h.py"))
    assert differing_fields([first, second]) == {"algorithm.maxStaleness": [2, 4], "trainer.hooks": [UNSET, "/h.py"]}
    assert differing_fields([first, first]) == {}


def test_figures_are_of_what_the_run_did(tmp_path):
    figures = read_run(make_run(tmp_path / "a", rewards=(0.0,) * 10 + (1.0,) * 10, status="Complete")).figures
    assert figures["status"] == "Complete"
    assert figures["steps"] == 20
    assert figures["reward, last 10 steps"] == 1.0
    assert figures["seconds a step"] == 2.0
    assert figures["share of waiting"] == 0.25
    assert figures["restarts"] == 2
    assert figures["held out, best"] is None


def test_a_run_without_steps_or_summary_is_shown_with_what_it_has(tmp_path, capsys):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", "seed=7", rewards=(0.5,))
    compare([tmp_path / "a", tmp_path / "b"], as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["fields"] == {"seed": [0, 7]}
    assert told["figures"]["steps"] == [0, 1]
    assert told["figures"]["reward, last 10 steps"] == [None, 0.5]
    compare([tmp_path / "a", tmp_path / "b"], as_json=False)
    assert "seed" in capsys.readouterr().out


def test_one_run_or_a_directory_of_something_else_is_refused(tmp_path):
    run = make_run(tmp_path / "a")
    with pytest.raises(ConfigError, match="nothing to be compared with"):
        compare([run], as_json=False)
    with pytest.raises(ConfigError, match="no run directory"):
        compare([run, tmp_path], as_json=False)


@pytest.mark.parametrize("damage", ["{", "[]", '{"restarts": 3}'])
def test_a_damaged_summary_ends_no_command_as_a_bug(tmp_path, damage, capsys):
    run, other = str(make_run(tmp_path / "a", rewards=(0.5,))), str(make_run(tmp_path / "b"))
    (tmp_path / "a" / "summary.json").write_text(damage)
    (tmp_path / "a" / "metrics.jsonl").open("a").write('{"step": "x"}\n{"step": 3, "seconds": []}\n')
    codes = {"status": ExitCode.CONFIG, "compare": ExitCode.DATA, "report": ExitCode.DATA, "why": ExitCode.CONFIG}
    for command, code in codes.items():
        arguments = [command, run, *([other] if command == "compare" else [])]
        assert guarded(lambda arguments=arguments: app(arguments)) == code
        said = capsys.readouterr().err
        assert "fix:" in said
        assert "please report" not in said


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 2, [0, 0.5, 1, 1.5, 2]),
        (0, 2.1, [0, 0.5, 1, 1.5, 2, 2.5]),
        (0, 0.93, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 137, [0, 50, 100, 150]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (3, 3, [3, 3.2, 3.4, 3.6, 3.8, 4]),
    ],
)
def test_ticks_are_round_and_reach_the_top(low, high, ticks):
    assert nice_ticks(low, high) == ticks
