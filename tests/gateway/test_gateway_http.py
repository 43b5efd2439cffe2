"""The gateway over real HTTP: what clients see, and what their time-outs and retries do. The engine is scripted."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from areal.errors import InfraError
from areal.gateway.session import SessionLimits
from areal.values.generation import Sampling
from areal.workflow.tokenizer import Tokenizer
from support.gateway_scene import ASK, Body, Scene

pytestmark = pytest.mark.component


async def test_an_answer_has_openais_shape_and_the_sampled_ids(scene: Scene, tokenizer: Tokenizer) -> None:
    answered = await scene.ask({**ASK, "logprobs": True, "return_token_ids": True, "user": "u"})
    body = answered.json()
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "the", "refusal": None}
    assert (choice["finish_reason"], body["object"], body["model"]) == ("stop", "chat.completion", "any")
    (prompt, sampling, _), ids = scene.engine.asked[0], scene.engine.ids.tolist()
    assert (body["prompt_token_ids"], choice["token_ids"]) == (prompt.tolist(), ids)
    assert body["usage"] == {
        "prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids),
    }  # fmt: skip
    assert sampling == Sampling(max_new_tokens=16)


async def test_t12_log_probabilities_are_the_engines_of_the_sampled_ids(scene: Scene, tokenizer: Tokenizer) -> None:
    (choice,) = (await scene.ask({**ASK, "logprobs": True})).json()["choices"]
    told = [(entry["token"], entry["logprob"]) for entry in choice["logprobs"]["content"]]
    assert told == [(tokenizer.piece(token).decode(), -0.25) for token in scene.engine.ids.tolist()]


async def test_t12_sampling_is_the_jobs_and_an_override_is_shown(scene: Scene) -> None:
    answered = await scene.ask({**ASK, "temperature": 0.1, "top_p": 1.0, "max_tokens": 5})
    assert answered.headers["x-areal-overridden"] == "temperature"
    assert scene.engine.asked[0][1] == Sampling(temperature=1.0, max_new_tokens=5)


async def test_what_ends_an_answer_of_the_job_ends_an_agents_too_and_is_not_shown(scene: Scene) -> None:
    scene.engine.sampling = Sampling(max_new_tokens=16, min_new_tokens=2, stop=("</a>", "q"), stop_token_ids=(7,))
    scene.engine.says("the </a>")
    answered = await scene.ask({**ASK, "stop": "q"})
    asked = Sampling(max_new_tokens=16, min_new_tokens=2, stop=("q", "</a>"), stop_token_ids=(7,))
    assert scene.engine.asked[0][1] == asked
    assert answered.json()["choices"][0]["message"]["content"] == "the "


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"n": 0}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"beam_width": 2}, "beam_width"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"messages": []}, "messages"),
    ],
)
async def test_what_would_change_the_distribution_is_refused_by_its_name(
    scene: Scene, fields: Body, named: str
) -> None:
    answered = await scene.ask({**ASK, **fields})
    error = answered.json()["error"]
    assert (answered.status_code, error["param"], error["type"]) == (400, named, "invalid_request_error")
    assert answered.headers["x-should-retry"] == "false"
    assert not scene.engine.asked


async def test_t1_a_second_turn_continues_the_ids_of_the_first(scene: Scene) -> None:
    answer = (await scene.ask()).json()["choices"][0]["message"]
    history = [*ASK["messages"], {"role": "assistant", "content": f"{answer['content']}\n"}]
    await scene.ask({**ASK, "messages": [*history, {"role": "user", "content": "more"}]})
    first, second = scene.engine.asked
    known = [*first[0].tolist(), *scene.engine.ids.tolist()]
    assert second[0].tolist()[: len(known)] == known


async def test_t9_a_time_out_and_its_retry_are_one_generation(scene: Scene) -> None:
    scene.engine.let.clear()
    with pytest.raises(httpx.ReadTimeout):
        await scene.ask(timeout=0.3)
    retried = asyncio.create_task(scene.ask(retry=1))
    await asyncio.sleep(0)
    scene.engine.let.set()
    assert (await retried).json()["choices"][0]["message"]["content"] == "the"
    await asyncio.sleep(1.0)  # `created` is in seconds
    again = await scene.ask(retry=2)
    assert again.json() == (await retried).json()
    assert len(scene.engine.asked) == 1


async def test_t9_the_same_question_twice_at_once_is_two_samples(scene: Scene) -> None:
    scene.engine.let.clear()
    both = [asyncio.create_task(scene.ask()) for _ in range(2)]
    await scene.engine.until_asked(2)
    scene.engine.let.set()
    assert [(await one).status_code for one in both] == [200, 200]
    assert scene.engine.asked[0][2] != scene.engine.asked[1][2]


async def test_a_key_opens_its_own_session_until_that_ends(scene: Scene) -> None:
    other = scene.server.open("4.0", scene.engine, SessionLimits(16, 4096, 32), lives_s=600)
    assert (await scene.ask(key="sk-areal-3.1-1-x")).status_code == 401
    assert (await scene.ask(key=other.api_key)).status_code == 403
    root = scene.server.address
    assert (await scene.ask(url=f"{root}/v1/chat/completions")).status_code == 200, "the key alone suffices"
    scene.server.close("3.1", "its group was revoked")
    late = await scene.ask()
    assert (late.status_code, late.headers["x-should-retry"]) == (410, "false")
    assert "revoked" in late.json()["error"]["message"]
    assert (await scene.ask(url=f"{other.base_url}/chat/completions", key=other.api_key)).status_code == 200


async def test_an_agent_posts_its_reward_and_ends_its_session(scene: Scene) -> None:
    async def post(name: str, **body: Any) -> tuple[int, Any]:
        answered = await scene.ask(body or {"x": 1}, url=f"{scene.access.base_url}/rl/{name}")
        return answered.status_code, answered.json()

    root = scene.access.base_url.removesuffix("/v1")
    assert (await scene.ask({"reward": 0}, url=f"{root}/rl/set_reward")).status_code == 200, "also without the /v1"
    first, newest = [(await scene.ask({**ASK, "seed": seed})).json()["id"] for seed in (1, 2)]
    assert (await post("set_reward", reward="much"))[1]["error"]["param"] == "reward"
    assert (await post("set_reward", reward=1, interaction_id=first))[1]["error"]["param"] == "interaction_id"
    assert (await post("set_reward", reward=0.5, interaction_id=newest))[0] == 200
    assert (await post("end_session"))[1]["interaction_count"] == 2
    assert [(await post(name, reward=1))[0] for name in ("set_reward", "end_session")] == [410, 410]
    assert (await scene.ask()).status_code == 410
    finished = scene.server.close("3.1", "it is over")
    assert (len(finished.nodes), finished.reward) == (2, 0.5)


async def test_a_call_under_way_ends_with_its_session(scene: Scene) -> None:
    scene.engine.let.clear()
    waiting = asyncio.create_task(scene.ask())
    await scene.engine.until_asked(1)
    scene.server.close("3.1", "the run is over")
    answered = await waiting
    assert (answered.status_code, answered.json()["error"]["code"]) == (410, "episode_over")


async def test_an_engines_fault_may_be_tried_again(scene: Scene) -> None:
    scene.engine.fault = InfraError("no server")
    failed = await scene.ask()
    assert (failed.status_code, "retry-after-ms" in failed.headers) == (503, True)
    scene.engine.fault = None
    assert (await scene.ask(retry=1)).status_code == 200
    assert scene.engine.asked[0][2] == scene.engine.asked[1][2], "with the same seed"


async def test_models_lists_the_policy(scene: Scene) -> None:
    headers = {"authorization": f"Bearer {scene.access.api_key}"}
    listed = (await scene.client.get(f"{scene.access.base_url}/models", headers=headers)).json()
    assert [(model["id"], model["max_model_len"]) for model in listed["data"]] == [("policy", 4096)]
