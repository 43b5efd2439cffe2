"""The embedded engine's face where it improves on SGLang, or where SGLang offers nothing to compare with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest
from areal.engine.control import permitted
from support.engine_models import VOCAB, make_model
from support.engine_server import EngineServer

PROMPT = [5, 17, 33]
LONG = {"max_new_tokens": 450, "temperature": 1.0, "ignore_eos": True}
KEYS = {"authorization": "Bearer user"}
ADMIN = {"authorization": "Bearer admin"}


@pytest.mark.parametrize(
    ("path", "api", "admin", "passes"),
    [
        ("/generate", None, None, {"", "user", "admin"}),
        ("/generate", "user", None, {"user"}),
        ("/pause_generation", "user", None, {"user"}),
        ("/generate", None, "admin", {"", "user", "admin"}),
        ("/pause_generation", None, "admin", {"admin"}),
        ("/generate", "user", "admin", {"user"}),
        ("/pause_generation", "user", "admin", {"admin"}),
        ("/health", "user", "admin", {"", "user", "admin"}),
        ("/ready", "user", "admin", {"", "user", "admin"}),
    ],
)
def test_keys_open_what_sglang_would_open(path, api, admin, passes):
    assert {bearer for bearer in ("", "user", "admin") if permitted(path, bearer, api, admin)} == passes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    model: Path = make_model(tmp_path_factory.mktemp("http") / "model", 0)
    started = EngineServer("embedded", model, "--api-key", "user", "--admin-api-key", "admin")
    try:
        yield started.start()
    finally:
        started.stop()


@pytest.fixture
def engine(server: EngineServer) -> EngineServer:
    server.http.headers.update(KEYS)
    server.http.post("/continue_generation", headers=ADMIN)
    return server


pytestmark = pytest.mark.timeout(120)


@pytest.mark.component
def test_a_stream_tells_everything_again_unless_increments_are_asked_for(engine):
    sampling = {"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True, "stream_interval": 4}
    again = engine.events(PROMPT, sampling)
    parts = engine.events(PROMPT, sampling, incremental_streaming_output=True)
    made = again[-1]["output_ids"]
    assert len(made) == 12
    assert all(event["output_ids"] == made[: len(event["output_ids"])] for event in again)
    assert [token for part in parts for token in part["output_ids"]] == made
    assert "".join(part["text"] for part in parts) == again[-1]["text"]


@pytest.mark.component
def test_an_id_outside_the_vocabulary_is_refused_and_the_server_lives(engine):
    answer = engine.post("/generate", input_ids=[3, VOCAB], sampling_params={"max_new_tokens": 4})
    assert answer.status_code == 400
    assert "vocabulary" in answer.json()["error"]["message"]
    assert len(engine.generate(PROMPT, {"max_new_tokens": 4, "ignore_eos": True})["output_ids"]) == 4


@pytest.mark.component
def test_health_answers_and_aborts_are_honoured_during_a_pause(engine):
    engine.http.post("/pause_generation", headers=ADMIN, content=b'{"mode":"retract"}')
    began = time.monotonic()
    assert engine.http.get("/health").status_code == 200
    assert engine.http.get("/ready").status_code == 503
    call = engine.generating(PROMPT, LONG, rid="late")
    while engine.http.get("/v1/loads").json()["loads"][0]["num_waiting_reqs"] == 0:
        assert time.monotonic() - began < 10
    engine.http.post("/abort_request", headers=ADMIN, content=b'{"rid":"late"}')
    assert call.result(60)["meta_info"]["finish_reason"]["type"] == "abort"
    assert engine.http.get("/ready").status_code == 503


@pytest.mark.component
def test_a_rid_in_use_is_refused(engine):
    call = engine.generating(PROMPT, LONG, rid="same")
    engine.until_running()
    answer = engine.post("/generate", input_ids=PROMPT, sampling_params={}, rid="same")
    assert answer.status_code == 400
    engine.http.post("/abort_request", headers=ADMIN, content=b'{"rid":"same"}')
    call.result()


@pytest.mark.component
def test_a_caller_who_goes_away_leaves_nothing_running(engine):
    for stream in (True, False):
        body = orjson.dumps({"input_ids": PROMPT, "sampling_params": LONG, "stream": stream})
        url = f"{engine.http.base_url}/generate"
        if stream:
            with httpx.stream("POST", url, content=body, headers=KEYS, timeout=10) as answer:
                assert next(answer.iter_raw())
        else:
            with pytest.raises(httpx.TimeoutException):
                httpx.post(url, content=body, headers=KEYS, timeout=0.05)
        until = time.monotonic() + 60
        while engine.http.get("/v1/loads").json()["loads"][0]["num_running_reqs"]:
            assert time.monotonic() < until
    aborted = [line for line in engine.http.get("/metrics").text.splitlines() if "num_aborted_requests_total{" in line]
    assert float(aborted[0].rpartition(" ")[2]) >= 1


@pytest.mark.component
def test_other_models_are_not_loaded_into_this_one(engine, tmp_path):
    other = make_model(tmp_path / "other", 0, hidden_size=32)
    body = orjson.dumps({"model_path": str(other), "weight_version": "x"})
    answer = engine.http.post("/update_weights_from_disk", headers=ADMIN, content=body)
    assert answer.status_code == 400
    assert "another model" in answer.json()["message"]


@pytest.mark.component
def test_calls_without_the_right_key_are_refused(engine):
    assert engine.http.get("/model_info", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert engine.http.post("/pause_generation", headers=KEYS, content=b"{}").status_code == 401
    assert engine.http.get("/model_info").status_code == 200


@pytest.mark.component
def test_it_does_not_pass_itself_off_as_sglang(engine):
    info = engine.http.get("/server_info").json()
    assert info["frontend"] == "embedded"
    told = engine.http.get("/metrics").text
    assert 'model_name="model"' in told
    assert str(engine.model) not in told, "whoever may scrape learns no path of the machine"
    names = {line.split("{")[0] for line in told.splitlines() if line[0] != "#"}
    assert {"sglang:num_running_reqs", "sglang:generation_tokens_total", "sglang:token_usage"} <= names


@pytest.mark.component
def test_a_broken_body_is_a_400(engine):
    for body in (b"", b"[1]", b"{", b'{"text": "hello"}', b'{"input_ids": 7}', b'{"input_ids": [[1], 2]}'):
        answer = engine.http.post("/generate", content=body)
        assert answer.status_code == 400, body
        assert "error" in answer.json()
