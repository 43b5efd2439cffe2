"""Load of chats over OpenAI's API: conversations of some turns, timed call by call, with little HTTP around them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

TURNS = 4  # calls of a conversation
FIRST = 3_600  # characters of the first message, about a thousand tokens
LATER = 240
_WORDS = (
    "the",
    "policy",
    "answers",
    "what",
    "an",
    "agent",
    "asks",
    "and",
    "each",
    "token",
    "of",
    "its",
    "log",
    "probability",
)


@dataclass(frozen=True)
class Place:
    """Where one conversation is held."""

    base_url: str
    api_key: str


class Connection:
    """One HTTP/1.1 connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, base_url: str) -> Connection:
        split = urlsplit(base_url)
        return cls(*await asyncio.open_connection(split.hostname, split.port, limit=1 << 24))

    async def post(self, place: Place, body: bytes) -> dict[str, Any]:
        """One chat call. Raises RuntimeError for every answer but 200."""
        head = (
            f"POST {urlsplit(place.base_url).path}/chat/completions HTTP/1.1\r\nhost: bench\r\n"
            f"authorization: Bearer {place.api_key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        told = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(told.partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = await self._reader.readexactly(length)
        if b" 200 " not in told.partition(b"\r\n")[0] + b" ":
            raise RuntimeError(f"{told.decode()}{answer.decode()[:500]}")
        return orjson.loads(answer)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def words(number: int, characters: int) -> str:
    """A text that differs from those of other numbers from its beginning on."""
    start = number % len(_WORDS)
    said = " ".join([*_WORDS[start:], *_WORDS[:start]])
    return f"{number}: {' '.join([said] * (characters // len(said)))}"


async def converse(connection: Connection, place: Place, number: int) -> list[float]:
    """One conversation; milliseconds of each of its calls."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Answer in one line."},
        {"role": "user", "content": words(number, FIRST)},
    ]
    spent = []
    for turn in range(TURNS):
        body = orjson.dumps({"model": "policy", "messages": messages})
        began = time.perf_counter()
        answer = await connection.post(place, body)
        spent.append(1000 * (time.perf_counter() - began))
        said = answer["choices"][0]["message"]
        messages += [
            {"role": "assistant", "content": said["content"]},
            {"role": "user", "content": words(turn + 1, LATER)},
        ]
    return spent


async def in_turn(servers: Sequence[Sequence[Place]], first: int) -> list[list[float]]:
    """Conversations one after another, with each server in turn; milliseconds of every call, by server."""
    connections = [await Connection.open(places[0].base_url) for places in servers]
    spent: list[list[float]] = [[] for _ in servers]
    for number in range(len(servers[0])):
        for server, connection, mine in zip(servers, connections, spent, strict=True):
            mine += await converse(connection, server[number], first + number)
    for connection in connections:
        await connection.close()
    return spent


async def at_once(places: Sequence[Place], connections: int) -> float:
    """All conversations over so many connections; seconds until the last one is over."""
    left = list(enumerate(places))

    async def one() -> None:
        connection = await Connection.open(places[0].base_url)
        while left:
            number, place = left.pop()
            await converse(connection, place, number)
        await connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return time.perf_counter() - began
