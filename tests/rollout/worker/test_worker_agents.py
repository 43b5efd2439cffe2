"""Agents in a whole worker: what they ask over HTTP becomes samples in the ledger, token by token."""

from __future__ import annotations

import asyncio

import httpx
import numpy as np
import pytest
from areal.v1 import rollout_pb2 as rollout
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
    async with asyncio.timeout(15):
        while not begun.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # set on the user's loop
        work.controller.send(revoked=[0])
        while not answered:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert (answered[0].status_code, answered[0].json()["error"]["code"]) == (410, "episode_over")
