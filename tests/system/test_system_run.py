"""Whole runs: what they leave behind, Ctrl-C and resume, no orphans, the other engine."""

from __future__ import annotations

import json
import signal
import time

import psutil
import pytest
from areal.errors import ConfigError
from areal.local.inspect import set_hot
from support.processes import lives

pytestmark = [pytest.mark.system, pytest.mark.timeout(420)]


def test_a_run_leaves_everything_that_was_promised_and_an_audit_finds_a_planted_duplicate(start_job):
    run = start_job("recording.tokenAudit=true", "algorithm.maxSteps=12", "evaluation.intervalSteps=6")
    assert run.finish(timeout_s=180) == 0, run.output[-4000:]
    for name in ("metrics.jsonl", "evaluations.jsonl", "summary.json", "report.html", "resolved.json"):
        assert (run.run_dir / name).stat().st_size > 0, name
    for folder in ("logs", "tensorboard", "trajectories", "weights", "checkpoints", "evidence"):
        assert any((run.run_dir / folder).iterdir()), folder
    assert (run.run_dir / "model" / "config.json").exists()
    summary = run.summary()
    assert summary["status"] == "Complete"
    assert summary["steps"] == 12
    assert summary["groups"]["trained"] == 12 * 16
    assert (summary["groups"]["lost"], summary["groups"]["duplicated"]) == (0, 0)
    assert summary["staleness"]["max"] <= 2
    assert 0 < summary["heldOut"]["first"] < 1
    versions = [json.loads(line)["version"] for line in (run.run_dir / "evaluations.jsonl").read_text().splitlines()]
    assert (versions[0], versions[-1]) == (0, 12)

    tokens = run.audit("--tokens")
    assert tokens["trained"] == tokens["equal"] > 0
    assert (tokens["unwitnessed"], tokens["gaps"]) == (0, [])
    assert run.audit()["duplicated"] == 0
    evidence = next(path for path in sorted((run.run_dir / "evidence").iterdir()) if path.stat().st_size)
    lines = evidence.read_text().splitlines(keepends=True)
    trained = next(line for line in lines if "trained" in line)
    evidence.write_text("".join([*lines, trained]))
    with pytest.raises(AssertionError, match="duplicated"):
        run.audit()


@pytest.mark.nightly  # each landing: a real model at η 0, hot fields after deaths in test_system_crashes.py
def test_eta_zero_trains_every_token_on_its_own_version_until_it_is_told_to_end(start_job):
    run = start_job("algorithm.maxStaleness=0", "algorithm.maxSteps=400")
    run.wait_for("a step", lambda: run.step() >= 1, timeout_s=120)
    assert set_hot(run.run_dir, {"algorithm.maxSteps": 6})["algorithm.maxSteps"] == 6
    with pytest.raises(ConfigError, match="maxStaleness"):
        set_hot(run.run_dir, {"algorithm.maxStaleness": 5000})
    assert run.finish(timeout_s=180) == 0, run.output[-4000:]
    summary = run.summary()
    assert summary["staleness"] == {"mean": 0, "max": 0}
    assert (summary["status"], 6 <= summary["steps"] < 400) == ("Complete", True)
    assert (summary["groups"]["lost"], summary["groups"]["duplicated"]) == (0, 0)


def test_ctrl_c_stops_cleanly_and_resume_goes_on(start_job):
    shorter = ("algorithm.maxSteps=16", "evaluation.intervalSteps=16")
    run = start_job(*shorter)
    run.wait_for("step 3", lambda: run.step() >= 3, timeout_s=120)
    run.process.send_signal(signal.SIGINT)
    assert run.finish(timeout_s=60) == 143, run.output[-4000:]
    stopped_at = run.step()
    assert 3 <= stopped_at < 16
    again = start_job(*shorter, resume=run)
    assert again.finish(timeout_s=180) == 0, again.output[-4000:]
    audit = again.audit()
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (16 * 16, 0, 0)


@pytest.mark.nightly  # each landing kills it over scripted roles: test_local_run.py
def test_killing_the_supervisor_leaves_no_process(start_job):
    run = start_job()
    run.wait_for("step 2", lambda: run.step() >= 2, timeout_s=120)
    family = psutil.Process(run.process.pid).children(recursive=True)
    assert len(family) >= 6
    run.process.kill()
    run.process.wait(60)
    deadline = time.monotonic() + 60
    while alive := [child for child in family if lives(child)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)


@pytest.mark.nightly  # each landing trains a real model on SGLang
@pytest.mark.sglang_real
def test_stock_sglang_trains_for_some_steps(start_job):
    run = start_job("generation.engine.type=sglang", "algorithm.maxSteps=6", "evaluation.intervalSteps=6")
    assert run.finish(timeout_s=400) == 0, run.output[-4000:]
    summary = run.summary()
    assert summary["steps"] == 6
    assert summary["staleness"]["max"] <= 2
    assert (summary["groups"]["lost"], summary["groups"]["duplicated"]) == (0, 0)


@pytest.mark.nightly  # each landing: the quickstart's, an agent's and a real model's
@pytest.mark.parametrize("name", ["environment", "custom_reward", "multi_turn", "own_loop", "ppo"])
def test_another_example_runs_to_the_end(name, start_job):
    small = ("algorithm.batchSize=64", "rollout.maxConcurrentRollouts=128", "algorithm.critic.warmupSteps=1")
    own = small if name == "ppo" else ()
    run = start_job("algorithm.maxSteps=3", "evaluation.intervalSteps=3", *own, job=f"examples/{name}.yaml")
    assert run.finish(timeout_s=120) == 0, run.output[-4000:]
    assert run.summary()["steps"] == 3
