"""`areal serve`: one model behind OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.component

KEY = "a-key"
QUESTION = {"model": "any", "messages": [{"role": "user", "content": "3142="}]}


@pytest.fixture(scope="module")
def server(digits: Path) -> Iterator[httpx.Client]:
    command = [sys.executable, "-m", "areal.cli.main", "serve", str(digits.parent), "--port", "0", "--key", KEY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "serving" in said
        address = said.split(" at ")[1].split("/v1")[0]
        with httpx.Client(base_url=address, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def ask(server: httpx.Client, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    return server.post(path, json={**QUESTION, "max_tokens": 8, **fields}).raise_for_status().json()


def texts(answer: Any) -> list[str]:
    return [choice["message"]["content"] for choice in answer["choices"]]


def test_every_dialect_gives_the_greedy_answer(server: httpx.Client) -> None:
    chat = ask(server, temperature=0)
    (said,) = texts(chat)
    assert 0 < chat["usage"]["completion_tokens"] <= 8
    assert ask(server, "/v1/messages", temperature=0)["content"][0]["text"] == said
    plain = server.post("/v1/completions", json={"model": "a", "prompt": "3142=", "temperature": 0, "max_tokens": 8})
    assert plain.json()["choices"][0]["text"] == said
    with server.stream(
        "POST", "/v1/chat/completions", json={**QUESTION, "temperature": 0, "max_tokens": 8, "stream": True}
    ) as stream:
        events = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == said
    assert server.get("/v1/models").json()["data"][0]["id"] == "digits-sft"
    assert ask(server, "/v1/messages/count_tokens")["input_tokens"] == chat["usage"]["prompt_tokens"]


def test_sampling_is_the_requests(server: httpx.Client) -> None:
    hot = {"temperature": 5.0, "n": 8}
    assert len(set(texts(ask(server, **hot)))) > 1
    assert texts(ask(server, **hot)) != texts(ask(server, **hot)), "without a seed each answer is new"
    assert texts(ask(server, **hot, seed=7)) == texts(ask(server, **hot, seed=7))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 1000}, "at most 128 answers"),
        ({"messages": [{"role": "user", "content": "1" * 700}]}, "context of 512"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"messages": "hello"}, "messages"),
    ],
)
def test_what_cant_be_answered_is_refused_in_words(server: httpx.Client, fields: dict[str, Any], word: str) -> None:
    refused = server.post("/v1/chat/completions", json={**QUESTION, **fields})
    assert refused.status_code == 400
    assert word in refused.json()["error"]["message"]


def test_a_request_stands_for_itself(server: httpx.Client) -> None:
    """There is no conversation to go on with: an answer's id is refused, not taken for a new question."""
    first = server.post("/v1/responses", json={"model": "a", "input": "3142=", "max_output_tokens": 8}).json()
    more = {"model": "a", "input": "9142=", "previous_response_id": first["id"]}
    refused = server.post("/v1/responses", json=more)
    assert refused.status_code == 400
    assert "previous_response_id" in refused.text


def test_without_the_key_nothing_is_answered(server: httpx.Client) -> None:
    for key in ("Bearer other", "Basic x"):
        refused = server.post("/v1/chat/completions", json=QUESTION, headers={"authorization": key})
        assert refused.status_code == 401


def test_a_conversation_in_the_terminal(server: httpx.Client, digits: Path) -> None:
    """With a server that runs, and with one of its own; what is refused is said."""

    def chat(model: str, *arguments: str, said: str = "3142=\n") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "areal.cli.main", "chat", model, "--temperature", "0", *arguments]
        return subprocess.run(command, input=said, capture_output=True, text=True, timeout=60)

    (answer,) = texts(ask(server, temperature=0))
    address = str(server.base_url)
    assert chat(address, "--key", KEY).stdout == f"{answer}\n"
    assert chat(str(digits), said="\n3142=\n").stdout == f"{answer}\n"
    refused = chat(address, "--key", "other")
    assert refused.returncode == 64
    assert "not this server's" in refused.stderr
    unknown = chat("nowhere")
    assert unknown.returncode == 64
    assert "no Hugging Face model" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "word"), [(["--host", "0.0.0.0"], "key"), (["--port", "0"], "no Hugging Face model")]
)
def test_a_server_that_must_not_start_says_why(tmp_path: Path, arguments: list[str], word: str) -> None:
    command = [sys.executable, "-m", "areal.cli.main", "serve", str(tmp_path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 64
    assert word in done.stderr
