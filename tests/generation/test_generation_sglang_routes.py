"""Routing replay with stock SGLang: each token's experts are those of the version that sampled the next one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from areal.clients.generation.accumulate import Accumulator, Next
from areal.expert_routes import RouterMode, route_shape, rows_of
from areal.spec.serving import SglangEngine
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as wire
from areal.values.generation import Sampling
from generation_parts import Answer, World, running_world, start_of
from support.engine_models import VOCAB, hf_logprobs
from support.module_models import make_module_model
from transformers import AutoModelForCausalLM

pytestmark = [
    pytest.mark.component,
    pytest.mark.sglang_real,
    pytest.mark.nightly,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="module"),
]

PROMPT = [5, 17, 33, 9, 40, 12, 8, 30, 21]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mixture(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    root = tmp_path_factory.mktemp("mixtures")
    models = [make_module_model(root / str(seed), "qwen3_moe", seed) for seed in range(2)]
    engine = SglangEngine(type="sglang", max_running_requests=16)
    async with running_world(models, root / "weights", engine, routes=True) as made:
        await made.controller.until("generation-0", lambda state: state.live, deadline_s=300)
        yield made


def whole(path: Path, ids: list[int]) -> np.ndarray:
    """Routes of a whole pass over these tokens."""
    lm = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    shape = route_shape(lm)
    assert shape is not None
    with torch.no_grad(), RouterMode(shape) as mode:
        lm(input_ids=torch.tensor([ids]), use_cache=False)
    return rows_of(shape, mode.chosen)


def routed(name: str, prompt: list[int], tokens: int, **more: int) -> wire.GenerateStart:
    start = start_of(name, prompt, tokens, **more)
    start.routes = True
    start.key.CopyFrom(common.SampleKey(group=1))
    return start


def joined(answers: list[Answer], tokens: int) -> Accumulator:
    """What a client makes of these attempts, one after another."""
    made = Accumulator(
        np.asarray(PROMPT, "<i4"),
        Sampling(max_new_tokens=tokens, ignore_eos=True),
        eos_ids=frozenset(),
        vocab_size=VOCAB,
    )
    for answer in answers:
        for delta in answer.deltas:
            made.add(delta.token_ids, delta.logprobs, delta.spans, delta.routes, delta.route_bytes)
        assert answer.end is not None
        made.end(answer.end.reason)
    return made


def rows_in(routes: bytes, tokens: int) -> np.ndarray:
    return np.frombuffer(routes, np.uint8).reshape(tokens, -1)


async def test_answers_and_what_a_cache_had_of_them_bring_the_experts_of_a_whole_pass(mixture):
    await mixture.serve(0, 0)
    for name in ("first", "of-the-cache"):
        (answer,) = await mixture.generate(routed(name, PROMPT, 24))
        result = joined([answer], 24).result()
        expected = whole(mixture.models[0], [*PROMPT, *answer.ids][:-1])
        np.testing.assert_array_equal(rows_in(result.routes, len(PROMPT) + 23), expected)
        np.testing.assert_allclose(answer.logprobs, hf_logprobs(mixture.models[0], PROMPT, answer.ids), atol=1e-4)
    (plain,) = await mixture.generate(start_of("of-an-evaluation", PROMPT, 8))
    assert joined([plain], 8).result().routes == b""


async def test_a_swap_hands_the_answer_back_and_each_token_keeps_its_versions_experts(mixture):
    await mixture.serve(1, 0)
    mixture.client.start(routed("before", PROMPT, 300))
    engine, running = mixture.agent.engine, {"num_running_reqs": 0.0}
    while not running["num_running_reqs"]:  # its tokens are told with its end
        running = await engine.loads()
    await mixture.publish(2, 1)
    (before,) = await mixture.client.ended("before")
    assert before.reason == "ABORTED"
    assert 0 < len(before.ids) < 300
    assert [policy for policy, _, _ in before.spans] == [mixture.policy(1)]
    await mixture.ready(2)
    left = 300 - len(before.ids)
    (after,) = await mixture.generate(routed("after", [*PROMPT, *before.ids], left, floor=2))
    made = joined([before, after], 300)
    assert made.end(wire.END_REASON_LENGTH) is Next.FINISHED
    ids = [*PROMPT, *before.ids, *after.ids]
    told, split = rows_in(made.result().routes, len(ids) - 1), len(PROMPT) + len(before.ids) - 1
    old, new = (whole(path, ids[:-1]) for path in mixture.models)
    np.testing.assert_array_equal(told[:split], old[:split])
    np.testing.assert_array_equal(told[split:], new[split:])
    assert (old != new).any()


async def test_what_sglang_tells_after_a_pause_that_nobody_saw_is_another_versions(mixture):
    """Why answers are handed back: through a pause alone the tokens that are there get the next version's experts."""
    await mixture.serve(3, 0)
    engine = mixture.agent.engine
    body = {
        "input_ids": [PROMPT],
        "sampling_params": [{"max_new_tokens": 200, "ignore_eos": True, "temperature": 1.0}],
        "return_logprob": True,
        "return_routed_experts": True,
        "incremental_streaming_output": True,
    }
    ids: list[int] = []
    rows, at_pause = b"", 0
    async with engine.stream(body) as groups:
        async for answers in groups:
            for answer in answers:
                ids += [triple[1] for triple in answer["meta_info"].get("output_token_logprobs") or []]
                rows = answer["meta_info"].get("routed_experts") or rows
            if not at_pause:
                at_pause = len(ids)
                await engine.pause("retract")
                path = mixture.volume / mixture.prepare(4, 1).path
                await engine.update_from_disk(str(path), "4.f9")
                await engine.resume()
    assert isinstance(rows, bytes)
    told = rows_in(rows, len(PROMPT) + len(ids) - 1)
    old, new = (whole(path, [*PROMPT, *ids][:-1]) for path in mixture.models)
    np.testing.assert_array_equal(told, new)
    assert (told[:at_pause] != old[:at_pause]).any()


async def test_an_answer_that_a_stop_string_ends_has_the_experts_of_all_its_tokens(mixture):
    await mixture.serve(5, 0)
    names = [f"stopped-{number}" for number in range(6)]
    starts = [routed(name, PROMPT, 200, stop=list("0123456789")) for name in names]
    answers = await mixture.generate(*starts)
    assert {answer.reason for answer in answers} == {"STOP"}
    for answer in answers:
        told = rows_in(joined([answer], 200).result().routes, len(PROMPT) + len(answer.ids) - 1)
        np.testing.assert_array_equal(told, whole(mixture.models[0], [*PROMPT, *answer.ids][:-1]))
