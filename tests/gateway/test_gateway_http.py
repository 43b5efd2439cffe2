"""The gateway over real HTTP: what clients see, and what their time-outs and retries do. The engine is scripted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from areal.errors import InfraError
from areal.gateway.core import Access, Gateway
from areal.gateway.http import GatewayServer
from areal.gateway.session import Limits
from areal.gateway.templates.template import Template
from areal.workflow.generation import GenerationResult, Ids, Sampling, TokenSpan, as_ids
from areal.workflow.tokenizer import Tokenizer
from support.chat_tokenizer import write_chat_tokenizer

pytestmark = pytest.mark.component

Body = dict[str, Any]
ASK: Body = {"model": "any", "messages": [{"role": "user", "content": "q"}]}


class Engine:
    """Answers with "the" and an end, when it is let."""

    sampling = Sampling(max_new_tokens=16)

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.asked: list[tuple[Ids, Sampling, int]] = []
        self.let = asyncio.Event()
        self.let.set()
        self.fault: InfraError | None = None
        self.ids = as_ids([*tokenizer.encode("the", special=False), next(iter(tokenizer.eos_ids))])

    async def generate(self, turn: int, ids: Ids, sampling: Sampling, draw: int) -> GenerationResult:
        self.asked.append((ids, sampling, draw))
        await self.let.wait()
        if self.fault is not None:
            raise self.fault
        logprobs = np.full(len(self.ids), -0.25, "<f4")
        return GenerationResult(self.ids, logprobs, (TokenSpan(0, len(self.ids), "3.f1", "server"),))

    async def until_asked(self, times: int) -> None:
        async with asyncio.timeout(10):
            while len(self.asked) < times:  # noqa: ASYNC110
                await asyncio.sleep(0.002)  # a list has no event


class Scene:
    """One gateway with one session."""

    def __init__(self, server: GatewayServer, engine: Engine, access: Access) -> None:
        self.server, self.engine, self.access = server, engine, access
        self.client = httpx.AsyncClient(timeout=20)

    async def ask(self, body: Body | None = None, *, retry: int = 0, **how: Any) -> httpx.Response:
        url = how.pop("url", f"{self.access.base_url}/chat/completions")
        headers = {"authorization": f"Bearer {how.pop('key', self.access.api_key)}"}
        if retry:
            headers["x-stainless-retry-count"] = str(retry)
        return await self.client.post(url, json=body or ASK, headers=headers, **how)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_dir(write_chat_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
async def scene(tokenizer: Tokenizer) -> AsyncIterator[Scene]:
    server = GatewayServer(Gateway(Template(tokenizer), secret=b"s", clock=time.monotonic), tokenizer)
    await server.start()
    engine = Engine(tokenizer)
    access = server.open("3.1", engine, Limits(16, 4096, 32), lives_s=600)
    made = Scene(server, engine, access)
    yield made
    engine.let.set()
    await made.client.aclose()
    await server.stop()


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
    assert told == [(tokenizer.text_of(token), -0.25) for token in scene.engine.ids.tolist()]


async def test_t12_sampling_is_the_jobs_and_an_override_is_shown(scene: Scene) -> None:
    answered = await scene.ask({**ASK, "temperature": 0.1, "top_p": 1.0, "max_tokens": 5})
    assert answered.headers["x-areal-overridden"] == "temperature"
    assert scene.engine.asked[0][1] == Sampling(temperature=1.0, max_new_tokens=5)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"n": 2}, "n"),
        ({"stream": True}, "stream"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"beam_width": 2}, "beam_width"),
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
    other = scene.server.open("4.0", scene.engine, Limits(16, 4096, 32), lives_s=600)
    assert (await scene.ask(key="sk-areal-3.1-1-x")).status_code == 401
    assert (await scene.ask(key=other.api_key)).status_code == 403
    root = scene.server.address
    assert (await scene.ask(url=f"{root}/v1/chat/completions")).status_code == 200, "the key alone suffices"
    scene.server.close("3.1", "its group was revoked")
    late = await scene.ask()
    assert (late.status_code, late.headers["x-should-retry"]) == (410, "false")
    assert "revoked" in late.json()["error"]["message"]
    assert (await scene.ask(url=f"{other.base_url}/chat/completions", key=other.api_key)).status_code == 200


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
