"""One contract, two engines: the embedded one, and stock SGLang on CPU."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from areal.generation.engine_client import KV_CACHE, WEIGHTS, EngineClient, EngineMemory
from areal.observe.waits import WaitRegistry
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.frozen_model import FrozenQuestion, OnSameRanks
from areal_trainer.served_teacher import ServedTeacher
from support.engine_models import CONTEXT, EOS, VOCAB, hf_logprobs, make_model
from support.engine_server import Background, EngineServer, logprobs
from support.trainer_parts import batch

pytestmark = [pytest.mark.component, pytest.mark.timeout(240)]

PROMPT = [5, 17, 33, 9, 40]
LONG = {"max_new_tokens": 400, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return make_model(root / "a", 0), make_model(root / "b", 1)


@pytest.fixture(scope="module", params=["embedded", pytest.param("sglang", marks=pytest.mark.sglang_real)], ids=str)
def server(request: pytest.FixtureRequest, models: tuple[Path, Path]) -> Iterator[EngineServer]:
    started = EngineServer(request.param, models[0], "--weight-version", "0.f1", "--max-running-requests", "32")
    try:
        yield started.start()
    finally:
        started.stop()


@pytest.fixture
def engine(server: EngineServer, models: tuple[Path, Path]) -> EngineServer:
    """The server with the first model, idle, running."""
    server.post("/continue_generation")
    server.post("/abort_request", abort_all=True)
    assert server.http.post("/flush_cache", params={"timeout": 20}).status_code == 200
    if server.http.get("/model_info").json()["weight_version"] != "0.f1":
        assert load(server, models[0], "0.f1")["success"]
    return server


def load(engine: EngineServer, model: Path, version: str, **fields: Any) -> dict[str, Any]:
    answer = engine.post("/update_weights_from_disk", model_path=str(model), weight_version=version, **fields)
    return dict(answer.json())


def worst(ours: list[float], theirs: list[float]) -> float:
    assert len(ours) == len(theirs)
    return max((abs(a - b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def test_logprobs_equal_hugging_face(engine, models):
    prompts = [PROMPT, [7], [11, 12, 13, 14, 15, 16, 17, 18, 19], PROMPT]
    answers = engine.generate(prompts, {"max_new_tokens": 24, "temperature": 1.0, "ignore_eos": True})
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer["output_ids"]) == 24
        assert worst(logprobs(answer), hf_logprobs(models[0], prompt, answer["output_ids"])) < 1e-5


def test_a_served_teacher_says_what_one_in_the_trainer_says(engine, models):
    ranks = RankGroup()
    tokens = batch(4, 3)
    cut = partial(rank_micro_batches, rank=0, world_size=1, micro_batch_tokens=64, pack_length=None)
    question = FrozenQuestion(tokens, np.arange(tokens.sequences) != 3, 64, cut)
    served = ServedTeacher(f"http://127.0.0.1:{engine.port}", ranks, WaitRegistry("trainer"), away_s=20.0)
    served.ready([])
    found = served.ask(question)()
    beside = OnSameRanks(PolicyEngine(models[0], ModelOptions(), ranks).logprobs).ask(question)()
    ranks.close()
    served.close()
    assert beside.min() < -1
    torch.testing.assert_close(found, beside, rtol=0, atol=1e-4)


def test_logprobs_are_of_the_temperature_scaled_softmax(engine, models):
    answer = engine.generate(PROMPT, {"max_new_tokens": 16, "temperature": 0.7, "ignore_eos": True})
    assert worst(logprobs(answer), hf_logprobs(models[0], PROMPT, answer["output_ids"], 0.7)) < 1e-5


def test_a_greedy_answer_is_the_most_probable_token_each_time(engine, models):
    answer = engine.generate(PROMPT, {"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True})
    made = answer["output_ids"]
    for place, token in enumerate(made):
        others = [hf_logprobs(models[0], PROMPT + made[:place], [other])[0] for other in range(0, VOCAB, 7)]
        assert hf_logprobs(models[0], PROMPT + made[:place], [token])[0] >= max(others) - 1e-5
    assert worst(logprobs(answer), hf_logprobs(models[0], PROMPT, made)) < 1e-5


def test_an_interruption_with_unchanged_weights_changes_nothing(engine):
    greedy = {"max_new_tokens": 300, "temperature": 0.0, "ignore_eos": True}
    whole = engine.generate(PROMPT, greedy)
    call = engine.generating(PROMPT, greedy)
    engine.until_running()
    engine.post("/pause_generation", mode="retract")
    engine.post("/continue_generation")
    interrupted = call.result()
    assert interrupted["output_ids"] == whole["output_ids"]
    assert worst(logprobs(interrupted), logprobs(whole)) < 1e-5


def test_a_swap_splits_the_answer_exactly_where_the_weights_changed(engine, models):
    call = engine.generating(PROMPT, LONG)
    engine.until_running()
    engine.post("/pause_generation", mode="retract")
    assert load(engine, models[1], "1.f1")["success"]
    engine.post("/continue_generation")
    answer = call.result()
    made, spans = answer["output_ids"], answer["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["0.f1", "1.f1"]
    assert spans[0]["start"] == 0
    assert spans[0]["end"] == spans[1]["start"]
    assert spans[1]["end"] == len(made) == 400
    split = spans[0]["end"]
    assert worst(logprobs(answer)[:split], hf_logprobs(models[0], PROMPT, made)[:split]) < 1e-5
    assert worst(logprobs(answer)[split:], hf_logprobs(models[1], PROMPT, made)[split:]) < 1e-5
    assert answer["meta_info"]["num_retractions"] >= 1


def test_after_a_disk_update_scores_are_the_new_models(engine, models):
    assert load(engine, models[1], "1.f1")["success"]
    info = engine.http.get("/model_info").json()
    assert info["weight_version"] == "1.f1"
    assert info["model_path"] == str(models[1])
    answer = engine.generate(PROMPT, {"max_new_tokens": 0, "temperature": 1.0}, logprob_start_len=0, extra_key="1.f1")
    scored = [triple[0] for triple in answer["meta_info"]["input_token_logprobs"]]
    assert scored[0] is None
    assert worst(scored[1:], hf_logprobs(models[1], PROMPT[:1], PROMPT[1:])) < 1e-5
    assert answer["output_ids"] == []


def test_weights_that_cannot_be_loaded_leave_the_old_ones(engine, models, tmp_path):
    assert not load(engine, tmp_path / "nowhere", "2.f1")["success"]
    assert engine.http.get("/model_info").json()["weight_version"] == "0.f1"
    answer = engine.generate(PROMPT, {"max_new_tokens": 8, "temperature": 1.0, "ignore_eos": True})
    assert worst(logprobs(answer), hf_logprobs(models[0], PROMPT, answer["output_ids"])) < 1e-5


def test_an_abort_returns_what_was_made(engine, models):
    call = engine.generating(PROMPT, LONG, rid="to-abort")
    engine.until_running()
    time.sleep(0.05)
    assert engine.post("/abort_request", rid="to-abort").status_code == 200
    answer = call.result()
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    made = answer["output_ids"]
    assert 0 < len(made) < 400
    assert worst(logprobs(answer), hf_logprobs(models[0], PROMPT, made)) < 1e-5


def test_a_pause_that_aborts_returns_what_was_made(engine):
    call = engine.generating(PROMPT, LONG)
    engine.until_running()
    engine.post("/pause_generation", mode="abort")
    answer = call.result()
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert len(answer["output_ids"]) < 400
    engine.post("/continue_generation")


def test_a_batch_streams_what_is_new_of_each_item_with_its_index(engine, models):
    prompts = [PROMPT, [8, 9], [30, 31, 32]]
    sampling = [{"max_new_tokens": count, "temperature": 1.0, "ignore_eos": True} for count in (9, 3, 6)]
    events = engine.events(prompts, sampling, rid=["s0", "s1", "s2"], incremental_streaming_output=True)
    for index, prompt in enumerate(prompts):
        own = [event for event in events if event["index"] == index]
        assert own[0]["meta_info"]["id"] == f"s{index}"
        made, scores = [], []
        for event in own:
            made += event["output_ids"]
            scores += logprobs(event)
            assert event["meta_info"]["completion_tokens"] == len(made) == len(scores)
        last = own[-1]
        assert last["meta_info"]["finish_reason"] == {"type": "length", "length": sampling[index]["max_new_tokens"]}
        assert worst(scores, hf_logprobs(models[0], prompt, made)) < 1e-5
        assert last["meta_info"]["weight_versions"] == [
            {"version": "0.f1", "start": 0, "end": sampling[index]["max_new_tokens"]}
        ]


def test_a_stream_interval_bundles_tokens(engine):
    sampling = {"max_new_tokens": 20, "temperature": 1.0, "ignore_eos": True, "stream_interval": 8}
    events = engine.events(PROMPT, sampling, incremental_streaming_output=True)
    assert len(events) <= 4
    assert sum(len(event["output_ids"]) for event in events) == 20


def test_a_request_that_arrives_during_a_pause_is_served_afterwards(engine):
    engine.post("/pause_generation", mode="retract")
    assert engine.http.get("/ready").status_code == 503
    assert engine.http.get("/health").status_code == 200
    call = engine.generating(PROMPT, {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True})
    with pytest.raises(AssertionError):
        call.result(0.3)
    engine.post("/continue_generation")
    assert len(call.result()["output_ids"]) == 4
    assert engine.http.get("/ready").status_code == 200


def test_a_frozen_request_goes_on_with_what_it_had(engine):
    call = engine.generating(PROMPT, LONG)
    engine.until_running()
    engine.post("/pause_generation", mode="in_place")
    engine.post("/continue_generation")
    answer = call.result()
    assert len(answer["output_ids"]) == 400
    assert answer["meta_info"]["num_retractions"] == 0


def test_the_stop_token_is_part_of_the_output(engine):
    probe = engine.generate(PROMPT, {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True})["output_ids"]
    stop = next(token for place, token in enumerate(probe) if token not in probe[:place] and place > 0)
    answer = engine.generate(PROMPT, {"max_new_tokens": 6, "temperature": 0.0, "stop_token_ids": [stop]})
    assert answer["output_ids"] == probe[: probe.index(stop) + 1]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert len(logprobs(answer)) == len(answer["output_ids"])


def test_a_stop_string_ends_the_answer(engine):
    probe = engine.generate(PROMPT, {"max_new_tokens": 8, "temperature": 0.0, "ignore_eos": True})["output_ids"]
    token = next(token for place, token in enumerate(probe) if token not in probe[:place] and place > 0)
    text = chr(ord("0") + token - 3)
    answer = engine.generate(PROMPT, {"max_new_tokens": 8, "temperature": 0.0, "ignore_eos": True, "stop": [text]})
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": text}
    assert answer["output_ids"] == probe[: probe.index(token) + 1]


def test_eos_ends_an_answer_unless_it_is_ignored(engine):
    sampling = {"max_new_tokens": 200, "temperature": 3.0}
    answers = engine.generate([PROMPT] * 8, sampling)
    ended = [answer for answer in answers if answer["meta_info"]["finish_reason"]["type"] == "stop"]
    assert ended, "eight answers of 200 nearly uniform tokens without one end"
    for answer in ended:
        assert answer["output_ids"].index(EOS) == len(answer["output_ids"]) - 1
    ignored = engine.generate([PROMPT] * 8, sampling | {"ignore_eos": True})
    assert all(len(answer["output_ids"]) == 200 for answer in ignored)


def test_truncated_sampling_keeps_the_full_softmax_logprob(engine, models):
    answer = engine.generate(PROMPT, {"max_new_tokens": 20, "temperature": 1.0, "top_k": 1, "ignore_eos": True})
    greedy = engine.generate(PROMPT, {"max_new_tokens": 20, "temperature": 0.0, "ignore_eos": True})
    assert answer["output_ids"] == greedy["output_ids"]
    assert worst(logprobs(answer), hf_logprobs(models[0], PROMPT, answer["output_ids"])) < 1e-5
    narrow = engine.generate(PROMPT, {"max_new_tokens": 20, "temperature": 1.0, "top_p": 1e-6, "ignore_eos": True})
    assert narrow["output_ids"] == greedy["output_ids"]


def test_what_does_not_fit_the_context_is_refused(engine):
    answer = engine.post("/generate", input_ids=[3] * CONTEXT, sampling_params={"max_new_tokens": 8})
    assert answer.status_code == 400
    assert "error" in answer.json()


def test_an_unknown_sampling_parameter_is_refused(engine):
    answer = engine.post("/generate", input_ids=PROMPT, sampling_params={"temprature": 1.0})
    assert answer.status_code == 400


def test_the_cache_is_flushed_only_when_nothing_runs(engine):
    call = engine.generating(PROMPT, LONG)
    engine.until_running()
    assert engine.http.post("/flush_cache").status_code == 400
    call.result()
    assert engine.http.post("/flush_cache", params={"timeout": 10}).status_code == 200


def test_the_version_can_be_renamed(engine):
    assert engine.post("/update_weight_version", new_version="7.f2", abort_all_requests=False).json()["success"]
    assert engine.http.get("/model_info").json()["weight_version"] == "7.f2"


def test_a_second_update_session_is_refused(engine):
    assert engine.post("/begin_weight_update", selector="target").status_code == 200
    assert engine.post("/begin_weight_update", selector="target").status_code == 400
    assert engine.post("/end_weight_update").status_code == 200


def test_checksums_tell_weights_apart(engine, models):
    first = engine.post("/weights_checker", action="checksum").json()["ranks"][0]["checksums"]
    load(engine, models[1], "1.f1")
    second = engine.post("/weights_checker", action="checksum").json()["ranks"][0]["checksums"]
    load(engine, models[0], "0.f1")
    again = engine.post("/weights_checker", action="checksum").json()["ranks"][0]["checksums"]
    assert first == again
    assert first != second


def memory_of(engine: EngineServer) -> EngineMemory:
    return EngineMemory(EngineClient(engine.port, embedded=engine.kind == "embedded"))


def test_memory_is_released_under_running_requests_and_taken_again_with_other_weights(engine, models):
    call = engine.generating(PROMPT, LONG)
    engine.until_running()
    late: list[Background] = []

    async def give_and_take() -> None:
        memory = memory_of(engine)
        await memory.release()
        await memory.release()  # twice is once
        late.append(engine.generating(PROMPT, {"max_new_tokens": 3, "temperature": 0.0}))
        assert engine.http.get("/health").status_code == 200
        await memory.resume(WEIGHTS)
        await memory.resume(WEIGHTS)
        assert load(engine, models[1], "1.f1")["success"]
        await memory.resume(KV_CACHE)
        assert call.running
        assert late[0].running
        await memory._engine.resume()
        await memory._engine.close()

    asyncio.run(give_and_take())
    answer = call.result()
    made, spans = answer["output_ids"], answer["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["0.f1", "1.f1"]
    split = spans[0]["end"]
    assert worst(logprobs(answer)[split:], hf_logprobs(models[1], PROMPT, made)[split:]) < 1e-5
    assert len(late[0].result()["output_ids"]) == 3


def test_what_is_not_released_is_never_resumed(engine):
    async def resume() -> None:
        memory = memory_of(engine)
        await memory.resume(KV_CACHE)
        await memory.resume(WEIGHTS)
        await memory._engine.close()

    asyncio.run(resume())
    assert len(engine.generate(PROMPT, {"max_new_tokens": 4, "ignore_eos": True})["output_ids"]) == 4


def test_loads_count_what_runs(engine):
    call = engine.generating([PROMPT, PROMPT], LONG)
    engine.until_running(2)
    load = engine.http.get("/v1/loads").json()["loads"][0]
    assert load["num_running_reqs"] == 2
    told = asyncio.run(loads_of(engine))
    assert (told["num_running_reqs"], told["num_waiting_reqs"]) == (2, 0)
    assert 0 < told["token_usage"] < 1
    assert math.isfinite(told["gen_throughput"])
    assert math.isnan(told["cache_hit_rate"]) is (engine.kind == "embedded")  # which counts no hits
    call.result()


async def loads_of(engine: EngineServer) -> dict[str, float]:
    client = EngineClient(engine.port, embedded=engine.kind == "embedded")
    try:
        return await client.loads()
    finally:
        await client.close()
