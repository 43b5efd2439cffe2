"""A whole job whose agent calls a tool that has no part in what is learnt: it stops itself."""

from __future__ import annotations

import json

import pytest
from areal.errors import ExitCode
from support.job_run import ROOT

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1800)]

AGENT = '''
class LooksUp:
    """Asks, is told something by a tool, and asks again."""

    async def run(self, data, *, base_url, api_key, http_client, **extra):
        messages = [{"role": "user", "content": data["prompt"]}]
        for said in (TOLD, None):
            answered = await http_client.post(
                f"{base_url}/chat/completions",
                headers={"Authorization": f"Bearer {api_key}"},
                json={"model": "policy", "messages": messages},
            )
            answer = answered.raise_for_status().json()["choices"][0]["message"]
            if said is not None:
                messages += [answer, {"role": "tool", "tool_call_id": "c", "content": said}]
                messages += [{"role": "user", "content": data["prompt"]}]
        return float(answer["content"].strip() == data["answer"])
'''


def test_an_agent_that_learns_without_its_tool_stops_itself(start_job, digits, tmp_path):
    (tmp_path / "agent.py").write_text(AGENT.replace("TOLD", repr("0")))
    job = (ROOT / "examples" / "agent_openai.yaml").read_text()
    file = tmp_path / "job.yaml"
    file.write_text(job.replace("examples/agent_openai.py", str(tmp_path / "agent.py")).replace("SortAgent", "LooksUp"))
    fields = ("algorithm.maxSteps=120", "evaluation.intervalSteps=15", "checkpoint.intervalSteps=60")
    run = start_job(*fields, job=str(file), small=())
    assert run.finish(timeout_s=1500) == ExitCode.DATA, run.output[-4000:]
    assert "the model is trained blind: its held-out score rose from" in run.output
    assert run.step() < 120
    looks = [json.loads(line) for line in (run.run_dir / "evaluations.jsonl").read_text().splitlines()]
    print([(look["version"], look["mean"], look.get("seen"), look.get("blind")) for look in looks])
    assert all(look["blind"] >= look["seen"] / 2 for look in looks[-2:])
