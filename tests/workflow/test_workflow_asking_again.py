"""Requests that are sent again after their connection broke."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from areal.workflow import agent as asking_again
from areal.workflow.agent import AskingAgain


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking_again, "_PAUSES_S", (0.0, 0.0))


class Breaking(httpx.AsyncBaseTransport):
    """Breaks so many connections, then answers."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked: list[tuple[bytes, str | None]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        body = b"".join([chunk async for chunk in request.stream])
        self.asked.append((body, request.headers.get("x-stainless-retry-count")))
        if len(self.asked) <= self.times:
            raise httpx.ReadError("reset")
        return httpx.Response(200, text="the answer")


async def test_a_request_is_sent_again_as_a_retry_with_the_same_body() -> None:
    server = Breaking(2)
    async with httpx.AsyncClient(transport=AskingAgain(server)) as client:
        assert (await client.post("http://gateway/v1", json={"a": 1})).text == "the answer"
    assert server.asked == [(b'{"a":1}', None), (b'{"a":1}', "1"), (b'{"a":1}', "2")]


async def test_it_gives_up_after_some_tries() -> None:
    server = Breaking(9)
    async with httpx.AsyncClient(transport=AskingAgain(server)) as client:
        with pytest.raises(httpx.ReadError):
            await client.post("http://gateway/v1", json={})
    assert len(server.asked) == 3


async def test_a_body_that_can_be_read_once_is_sent_once() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"once"

    server = Breaking(1)
    async with httpx.AsyncClient(transport=AskingAgain(server)) as client:
        with pytest.raises(httpx.ReadError):
            await client.post("http://gateway/v1", content=body())
    assert len(server.asked) == 1
