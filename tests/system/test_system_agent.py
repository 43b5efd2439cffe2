"""A job whose episodes are an agent over OpenAI's chat API, trained by whole processes."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(420)]


def test_an_agent_over_http_is_trained_evaluated_and_audited(start_job):
    run = start_job("algorithm.maxSteps=6", "evaluation.intervalSteps=6", job="examples/agent_openai.yaml")
    assert run.finish(timeout_s=300) == 0, run.output[-4000:]
    summary = run.summary()
    assert (summary["status"], summary["steps"]) == ("Complete", 6)
    audit = run.audit()
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (6 * 16, 0, 0)
    for row in run.metrics():
        assert row["samples"] == row["sequences"] == 16 * 8
        assert (row["logprob_mismatch_max"] or 0) < 1e-3, "the trainer reads the very ids that the engine was fed"
    evaluations = [json.loads(line) for line in (run.run_dir / "evaluations.jsonl").read_text().splitlines()]
    assert [(entry["version"], entry["rows"], entry["failed_rows"]) for entry in evaluations] == [
        (0, 50, 0),
        (6, 50, 0),
    ]
    said = [json.loads(line) for path in (run.run_dir / "trajectories").iterdir() for line in path.open()]
    second_tries = [line for line in said if line["completion"].count("=") == 1]
    assert second_tries, "a wrong answer is followed by the question and another try, in one sequence"
    assert {line["reward"] for line in said} <= {0.0, 0.5, 1.0}
