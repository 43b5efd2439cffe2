"""Watch stream: bytes to events. Owns the framing: one JSON object a line, of any length."""

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from enum import StrEnum

import orjson

from areal_operator.kube.errors import ApiError, error_of
from areal_operator.kube.resources import Json


class StreamEvent(StrEnum):
    """What an event of a watch says about its object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # nothing changed up to this version


@dataclass(frozen=True)
class WatchEvent:
    """One event. A bookmark's object has a resourceVersion and nothing else."""

    change: StreamEvent
    obj: Json


class GarbledError(ApiError):
    """The stream holds what no API server writes: what came before it can't be trusted either."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Garbled", message)


async def lines(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Whole lines without their ends. A last line without an end is garbled: it was cut."""
    parts: list[bytes] = []
    async for chunk in chunks:
        head, *rest = chunk.split(b"\n")
        parts.append(head)
        for tail in rest:
            line = b"".join(parts)
            parts = [tail]
            if line.strip():
                yield line
    if b"".join(parts).strip():
        raise GarbledError("the stream ended within a line")


async def events(chunks: AsyncIterable[bytes]) -> AsyncIterator[WatchEvent]:
    """The events of a watch. An ERROR of the server is raised as the ApiError it carries."""
    async for line in lines(chunks):
        try:
            read = orjson.loads(line)
            kind, obj = read["type"], read["object"]
            if kind == "ERROR":
                raise error_of(int(obj["code"]), obj, what="watch")
            event = WatchEvent(StreamEvent(kind), obj)
            if event.change is StreamEvent.BOOKMARK:
                int(obj["metadata"]["resourceVersion"])
            else:
                identified(obj)
        except (ValueError, KeyError, TypeError) as error:
            raise GarbledError(f"not an event: {line[:100]!r}") from error
        yield event


def identified(obj: Json) -> None:
    """Check what everything else stands on: a version, a name. Raises KeyError, TypeError or ValueError."""
    int(obj["metadata"]["resourceVersion"])
    if not isinstance(obj["metadata"]["name"], str):
        raise TypeError("a name is a string")
