"""Agents in a whole worker: what they ask over HTTP becomes samples in the ledger, token by token."""

from __future__ import annotations

import asyncio
import json
import sys

import httpx
import numpy as np
import psutil
import pytest
from areal.errors import DataError
from areal.rollout.contract.values import BLIND, NOTHING_WITHHELD
from areal.v1 import rollout_pb2 as rollout
from areal.workflow import CommandAgent, RolloutWorkflow
from areal.workflow.base import Outcome
from support.scripted_controller import lease
from support.worker_parts import ROW

pytestmark = pytest.mark.component


async def chat(client: httpx.AsyncClient, url: str, key: str, messages: list[dict], **fields) -> dict:
    headers = {"authorization": f"Bearer {key}"}
    answered = await client.post(
        f"{url}/chat/completions", json={"messages": messages, "return_token_ids": True, **fields}, headers=headers
    )
    return answered.raise_for_status().json()


async def test_two_turns_of_an_agent_are_one_trained_sequence(bench):
    seen = {}

    async def run(data, *, base_url, api_key, http_client, **extra):
        messages = [{"role": "user", "content": data["prompt"]}]
        first = await chat(http_client, base_url, api_key, messages)
        answer = first["choices"][0]["message"]
        messages += [answer, {"role": "user", "content": "7"}]
        second = await chat(http_client, base_url, api_key, messages, max_tokens=4)
        ids = [body["choices"][0]["token_ids"] for body in (first, second)]
        seen[base_url] = (first["prompt_token_ids"], ids[0], second["prompt_token_ids"], ids[1])
        return len(seen) / 8

    work = await bench(agents_run=run).start()
    work.controller.send(leases=[lease(g, [0, 1], ROW) for g in range(2)])
    await work.controller.until(lambda: len(work.controller.done) == 4)
    stored = await work.stored()
    told = sorted([*second, *answer] for _, _, second, answer in seen.values())
    trained = []
    for sample in stored.values():
        (sequence,) = sample.sequences
        ids = np.frombuffer(sequence.token_ids, "<i4").tolist()
        trained.append(ids)
        mask = np.frombuffer(sequence.loss_mask, "u1").tolist()
        prompt, first, second, answer = next(entry for entry in seen.values() if [*entry[2], *entry[3]] == ids)
        between = len(second) - len(prompt) - len(first)
        assert second[: len(prompt) + len(first)] == [*prompt, *first]
        assert mask == [0] * len(prompt) + [1] * len(first) + [0] * between + [1] * len(answer)
        covered = {place for span in sequence.spans for place in range(span.start, span.end)}
        assert covered == set(np.flatnonzero(mask).tolist())
    assert sorted(trained) == told


async def test_an_evaluation_runs_the_agent_and_counts_what_it_returns(bench):
    async def run(data, *, base_url, api_key, http_client, **extra):
        await chat(http_client, base_url, api_key, [{"role": "user", "content": data["prompt"]}])
        return 0.75

    work = await bench(agents_run=run).start()
    row = rollout.EvalLease(evaluation_id="0.abc", floor=0, row=3, row_json=ROW)
    work.controller.send(evaluations=[row])
    await work.controller.until(lambda: work.controller.evaluated)
    (result,) = work.controller.evaluated
    assert (result.row, result.score, result.fault.message) == (3, 0.75, "")
    assert work.agents[0].starts[0].sampling.temperature == 0


@pytest.mark.parametrize("calls", [True, False])
async def test_a_blind_answer_of_an_evaluation_does_without_what_tools_say(bench, calls):
    """It counts only where there was something to do without."""
    prompts: dict[str, list[int]] = {}

    async def run(data, *, base_url, api_key, http_client, **extra):
        messages = [{"role": "user", "content": data["prompt"]}]
        said = (await chat(http_client, base_url, api_key, messages))["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": "c", "content": "7 7 7"}
        messages += [said, result if calls else {"role": "user", "content": "7 7 7"}]
        second = await chat(http_client, base_url, api_key, messages, max_tokens=4)
        prompts[base_url] = second["prompt_token_ids"]
        return 0.5

    work = await bench(agents_run=run).start()
    for count, sample in enumerate((0, BLIND), 1):
        row = rollout.EvalLease(evaluation_id="0.abc", floor=0, row=3, row_json=ROW, sample=sample)
        work.controller.send(evaluations=[row])
        await work.controller.until(lambda count=count: len(work.controller.evaluated) == count)
    seen, blind = sorted(work.controller.evaluated, key=lambda result: result.sample)
    assert (seen.score, seen.fault.message) == (0.5, "")
    assert (blind.score, blind.fault.message) == ((0.5, "") if calls else (0.0, NOTHING_WITHHELD))
    with_tools, without = prompts.values()
    assert (len(with_tools) > len(without)) == calls


@pytest.mark.parametrize(
    ("result", "said"), [("raise", "RuntimeError: no"), (None, "returned None"), ("silent", "without a call")]
)
async def test_an_agent_that_goes_wrong_costs_its_sample_and_says_why(bench, result, said):
    async def run(data, *, base_url, api_key, http_client, **extra):
        if result != "silent":
            await chat(http_client, base_url, api_key, [{"role": "user", "content": "1"}])
        if result == "raise":
            raise RuntimeError("no")
        return 1.0 if result == "silent" else result

    work = await bench(agents_run=run).start()
    work.controller.send(leases=[lease(0, [0], ROW)])
    await work.controller.until(lambda: work.controller.failures)
    (failure,) = work.controller.failures
    assert failure.kind == rollout.FAILURE_KIND_EXCEPTION
    assert said in failure.fault.message


async def test_a_revoked_group_ends_its_agents(bench):
    begun, answered = asyncio.Event(), []

    async def run(data, *, base_url, api_key, http_client, **extra):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            async with httpx.AsyncClient() as late:
                headers = {"authorization": f"Bearer {api_key}"}
                answered.append(await late.get(f"{base_url}/models", headers=headers))

    work = await bench(agents_run=run).start()
    work.controller.send(leases=[lease(0, [0], ROW)])
    async with asyncio.timeout(60):
        while not begun.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # set on the user's loop
        work.controller.send(revoked=[0])
        while not answered:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert (answered[0].status_code, answered[0].json()["error"]["code"]) == (410, "episode_over")


PROGRAM = """
import json, os, sys, urllib.request
row = json.load(sys.stdin)
assert not [name for name in os.environ if name.startswith("AREAL_")]
body = {"messages": [{"role": "user", "content": row["prompt"]}], "max_tokens": 4}
body |= {"stream": True, "return_token_ids": True}
headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"}
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/chat/completions"
lines = urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read().splitlines()
choices = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith(b"data: {")]
ids = [token for choice in choices for token in choice.get("token_ids", [])]
open(sys.argv[1], "w").write(json.dumps(ids))
print("thinking...")
print(0.25)
"""


async def test_a_command_that_streams_is_trained_by_the_ids_it_was_told(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("AREAL_TOKEN", "secret")
    agent = CommandAgent([sys.executable, "-I", "-S", "-c", PROGRAM, str(tmp_path / "ids")])
    work = await bench(agents_run=agent.run).start()
    work.controller.send(leases=[lease(0, [0], ROW)])
    await work.controller.until(lambda: work.controller.done)
    (sample,) = (await work.stored()).values()
    (sequence,) = sample.sequences
    await work.end()
    assert [made.note for made in work.recorded()] == ["thinking...\n0.25"]
    mask = np.frombuffer(sequence.loss_mask, "u1") == 1
    told = json.loads((tmp_path / "ids").read_text())
    assert np.frombuffer(sequence.token_ids, "<i4")[mask].tolist() == told
    assert (len(told), sequence.reward) == (4, 0.25)


@pytest.mark.parametrize(
    ("command", "said"),
    [(["sh", "-c", "echo broken >&2; exit 3"], "ended with 3: broken"), (["/no/such/program"], "can't be started")],
)
async def test_a_command_that_goes_wrong_says_why(command, said):
    with pytest.raises(DataError, match=said):
        await CommandAgent(command).run({}, base_url="http://127.0.0.1:9/v1", api_key="k")


async def test_what_a_command_leaves_behind_holds_nobody_up():
    outcome = await CommandAgent(["sh", "-c", "sleep 1000 & echo 0.5"]).run({}, base_url="", api_key="")
    assert outcome == Outcome(0.5, "0.5")


SCORES = """
import json, os, sys, time, urllib.request
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
def post(path, body):
    headers = {"authorization": "Bearer " + key, "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/{path}", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))
answer = post("chat/completions", {"messages": [{"role": "user", "content": "1"}]})
assert post("rl/start_session", {"task_id": "any"})["api_key"] == key
post("rl/set_reward", {"reward": 0.75, "interaction_id": answer["id"]})
assert post("rl/end_session", {})["interaction_count"] == 1
time.sleep(1000)
"""


async def test_a_command_that_posts_its_reward_and_ends_its_session_is_over(bench):
    agent = CommandAgent([sys.executable, "-I", "-S", "-c", SCORES])
    work = await bench(agents_run=agent.run).start()
    work.controller.send(leases=[lease(0, [0], ROW)])
    await work.controller.until(lambda: work.controller.done)
    (sample,) = (await work.stored()).values()
    assert [sequence.reward for sequence in sample.sequences] == [0.75]


class Judged(RolloutWorkflow):
    """A recipe's workflow around an agent."""

    async def arun_episode(self, engine, row):
        async with engine.session() as session, httpx.AsyncClient() as client:
            await chat(client, session.base_url, session.api_key, [{"role": "user", "content": row["prompt"]}])
            return await session.episode(0.5)


async def test_a_workflow_opens_a_session_for_its_agent(bench):
    work = await bench(workflow=Judged).start()
    work.controller.send(leases=[lease(0, [0, 1], ROW)])
    await work.controller.until(lambda: len(work.controller.done) == 2)
    stored = (await work.stored()).values()
    assert [sequence.reward for sample in stored for sequence in sample.sequences] == [0.5, 0.5]


async def test_a_command_ends_with_its_episode(tmp_path):
    script = f"sh -c 'echo $$ > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/begun; sleep 1000'; true"
    running = asyncio.create_task(CommandAgent(["sh", "-c", script]).run({}, base_url="", api_key=""))
    async with asyncio.timeout(60):
        while not (tmp_path / "begun").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # another process writes it
        child = psutil.Process(int((tmp_path / "begun").read_text()))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    gone, alive = await asyncio.to_thread(psutil.wait_procs, [child], 20)
    assert (gone, alive) == ([child], [])
