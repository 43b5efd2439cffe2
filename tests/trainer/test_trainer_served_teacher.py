"""A teacher behind an address: what is read of its answers, what is refused, and how long it may be away."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from areal.errors import DataError, InfraError
from areal.observe.waits import WaitRegistry
from areal_trainer.frozen_model import FrozenQuestion
from areal_trainer.served_teacher import ServedTeacher
from support.trainer_parts import batch

URL = "http://teacher.models:30000"
ALONE: Any = SimpleNamespace(first=True, world_size=1, tell=lambda message: message)


class Clock:
    """Time that passes by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def scored(ids: list[int]) -> dict[str, Any]:
    """An answer that gives token id i the log-probability −i/10."""
    triples = [[None if place == 0 else -token / 10, token, None] for place, token in enumerate(ids)]
    return {"text": "", "output_ids": [], "meta_info": {"input_token_logprobs": triples}}


def teacher(answer, clock: Clock | None = None, asked: list[Any] | None = None) -> ServedTeacher:
    """One whose server answers by `answer(body)`."""

    def handle(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if asked is not None:
            asked.append(body)
        found = answer(body)
        return found if isinstance(found, httpx.Response) else httpx.Response(200, json=found)

    clock = clock or Clock()
    http = httpx.Client(transport=httpx.MockTransport(handle))
    return ServedTeacher(URL, ALONE, WaitRegistry("trainer"), away_s=30.0, http=http, clock=clock, sleep=clock.sleep)


def said(server: ServedTeacher, tokens, chosen) -> np.ndarray[Any, Any]:
    try:
        return server.ask(FrozenQuestion(tokens, chosen, 64, lambda *_: []))().numpy()
    finally:
        server.close()


def test_trainable_tokens_of_the_chosen_sequences_have_what_the_server_said():
    tokens, asked = batch(6, 4), []
    chosen = np.arange(tokens.sequences) != 2
    found = said(teacher(lambda body: [scored(ids) for ids in body["input_ids"]], asked=asked), tokens, chosen)
    wanted = tokens.trainable() & chosen[tokens.sequence_of]
    np.testing.assert_allclose(found, np.where(wanted, -tokens.token_ids / 10, 0.0), rtol=1e-6)
    assert sum(len(body["input_ids"]) for body in asked) == chosen.sum()
    assert all(body["logprob_start_len"] == 0 and body["return_logprob"] for body in asked)
    assert all(body["sampling_params"] == {"max_new_tokens": 0, "temperature": 1.0} for body in asked)


def other_token(ids: list[int]) -> dict[str, Any]:
    answer = scored(ids)
    answer["meta_info"]["input_token_logprobs"][-1][1] += 1
    return answer


def changed(ids: list[int], value: Any) -> dict[str, Any]:
    answer = scored(ids)
    answer["meta_info"]["input_token_logprobs"][-1][0] = value
    return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda body: [scored(ids[:-1]) for ids in body["input_ids"]], "log-probabilities of a sequence of"),
        (lambda body: [{"meta_info": {}} for _ in body["input_ids"]], "gives no log-probabilities of a sequence of"),
        (lambda body: [scored(body["input_ids"][0])], "answers for 1 sequences, and was asked about"),
        (lambda body: {"text": ""}, "answers for no sequences"),
        (lambda body: [other_token(ids) for ids in body["input_ids"]], "speaks of token id"),
        (lambda body: [changed(ids, None) for ids in body["input_ids"]], "gives None for token id"),
        (lambda body: [changed(ids, 0.5) for ids in body["input_ids"]], "no log-probability"),
        (lambda body: httpx.Response(400, text="the prompt is beyond the context"), "HTTP 400: the prompt is beyond"),
        (lambda body: httpx.Response(200, text="<html>"), "answers no JSON"),
    ],
)
def test_an_answer_that_is_not_of_what_was_asked_is_refused_with_the_address(answer, words):
    tokens = batch(2)
    with pytest.raises(DataError, match=words) as refused:
        said(teacher(answer), tokens, np.ones(tokens.sequences, np.bool_))
    assert URL in refused.value.message


def test_a_server_that_is_away_is_waited_for_and_then_named():
    tokens, clock, away = batch(2), Clock(), [True, True, True]

    def answer(body):
        if away:
            away.pop()
            return httpx.Response(503, text="loading")
        return [scored(ids) for ids in body["input_ids"]]

    assert said(teacher(answer, clock), tokens, np.ones(tokens.sequences, np.bool_)).any()
    assert 0.7 <= clock.now <= 1.4

    def gone(body):
        raise httpx.ConnectError("connection refused")

    with pytest.raises(InfraError, match=r"gave no answer for (2\d|30) s \(ConnectError: connection refused\)"):
        said(teacher(gone), tokens, np.ones(tokens.sequences, np.bool_))


def test_a_key_with_a_lines_end_is_sent_without_it(monkeypatch):
    """A Secret made of a file ends so; as a header it would be refused, in words that hold the key."""
    tokens, keys = batch(2), []

    class Requests(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            keys.append(self.headers["Authorization"])
            body = json.dumps([scored(ids) for ids in asked["input_ids"]]).encode()
            self.send_response(200)
            self.send_header("Content-Length", f"{len(body)}")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    monkeypatch.setenv("TEACHER_API_KEY", "some words\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), Requests) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        asked = ServedTeacher(url, ALONE, WaitRegistry("trainer"), away_s=5.0)
        assert said(asked, tokens, np.ones(tokens.sequences, np.bool_)).any()
        server.shutdown()
    assert set(keys) == {"Bearer some words"}


def test_a_server_that_takes_each_question_and_is_silent_ends_the_step_in_a_bounded_time():
    clock, tokens = Clock(), batch(2)

    def silent(body):
        clock.sleep(300.0)
        raise httpx.ReadTimeout("timed out")

    with pytest.raises(InfraError, match=r"gave no answer for \d+ s \(ReadTimeout: timed out\)"):
        said(teacher(silent, clock), tokens, np.ones(tokens.sequences, np.bool_))


def spelling(texts: list[str] | None):
    """A server that spells tokens so, or not at all."""

    def answer(body):
        answers = [scored(ids) for ids in body["input_ids"]]
        if body.get("return_text_in_logprobs"):
            for triple in answers[0]["meta_info"]["input_token_logprobs"]:
                if texts is None:
                    return httpx.Response(500, text="no tokenizer")
                triple[2] = texts[triple[1]]
        return answers

    return answer


def test_a_wrong_address_is_known_before_the_first_step():
    server = teacher(lambda body: httpx.Response(404, text="Not Found"))
    with pytest.raises(DataError, match="HTTP 404: Not Found"):
        server.ready([])
    server.close()


def test_a_server_of_another_vocabulary_is_known_by_its_low_token_ids_before_the_first_step():
    ours = [f"t{token}" for token in range(1000)]
    for texts in (ours, None, [f" t{token}" for token in range(1000)]):
        server = teacher(spelling(texts))
        server.ready(ours)
        server.close()
    asked: list[Any] = []
    server = teacher(spelling([f"x{token}" for token in range(1000)]), asked=asked)
    with pytest.raises(DataError, match="another vocabulary: token id 0 is 'x0' there and 't0' here"):
        server.ready(ours)
    server.close()
    assert max(token for body in asked for ids in body["input_ids"] for token in ids) < 150
