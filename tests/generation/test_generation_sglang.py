"""The agent beside stock SGLang on CPU: swaps, spans and the canary as with the embedded engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from areal.spec.serving import SglangEngine
from generation_parts import World, running_world, start_of
from support.engine_models import hf_logprobs

pytestmark = [
    pytest.mark.component,
    pytest.mark.sglang_real,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
]

PROMPT = [5, 17, 33, 9, 40]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sglang(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    engine = SglangEngine(type="sglang", max_running_requests=32)
    async with running_world(models, tmp_path_factory.mktemp("weights"), engine) as made:
        await made.controller.until("generation-0", lambda state: state.live, deadline_s=200)
        yield made


def close(ours, theirs) -> bool:
    return bool(np.allclose(ours, theirs, atol=1e-5))


async def test_a_swap_in_the_middle_of_an_answer_leaves_exact_spans(sglang, models):
    await sglang.serve(0, 0)
    await sglang.running(start_of("long", PROMPT, 400))
    await sglang.publish(1, 1)
    (answer,) = await sglang.client.ended("long")
    assert [policy for policy, _, _ in answer.spans] == [sglang.policy(0), sglang.policy(1)]
    assert len(answer.ids) == 400
    split = answer.spans[0][2]
    assert close(answer.logprobs[:split], hf_logprobs(models[0], PROMPT, answer.ids)[:split])
    assert close(answer.logprobs[split:], hf_logprobs(models[1], PROMPT, answer.ids)[split:])


async def test_a_failed_canary_falls_back_and_bad_ids_never_reach_the_engine(sglang, models):
    await sglang.serve(2, 0)
    await sglang.publish(3, 1, canary_of=2)
    state = await sglang.until(lambda state: state.refused.policy_id == sglang.policy(3))
    assert "canary" in state.refused.reason
    await sglang.serve(4, 1)
    bad, good = await sglang.generate(start_of("bad", [3, 64], 4), start_of("good", PROMPT, 12))
    assert bad.reason == "REFUSED"
    assert good.spans == [(sglang.policy(4), 0, 12)]
    assert close(good.logprobs, hf_logprobs(models[1], PROMPT, good.ids))


async def test_a_drain_ends_requests_with_what_was_made(sglang, models):
    await sglang.serve(5, 0)
    await sglang.running(start_of("running", PROMPT, 450))
    assert await sglang.agent.drain(5.0) == 1
    (running,) = await sglang.client.ended("running")
    assert running.reason == "DRAINING"
    assert close(running.logprobs, hf_logprobs(models[0], PROMPT, running.ids))
