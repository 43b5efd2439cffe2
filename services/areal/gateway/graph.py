"""A session's message graph: where a call's messages continue what was said and sampled, and where they don't.

Append-only: the ids of a later prompt begin with the exact ids given and sampled before. Messages are compared by
meaning; a history that differs from every answer given begins a branch of its own, in which nothing is trained but
what is sampled there. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from areal.gateway.messages import Message
from areal.values.generation import Ids, as_ids
from areal.workflow.branches import Node, path_of


@dataclass(frozen=True)
class Spoken:
    """A node as its client saw it: every message up to its answer."""

    node: Node
    messages: tuple[Message, ...]
    tools: str  # digest of the tools that the prompt named


@dataclass(frozen=True)
class CallPlace:
    """Where a call belongs: behind `parent`, with these messages new; all of them are new for a root."""

    parent: Spoken | None
    new: tuple[Message, ...]


class MessageGraph:
    """The answered calls of one session."""

    def __init__(self) -> None:
        self._spoken: dict[int, Spoken] = {}
        self._length: dict[int, int] = {}  # tokens of the path that ends with a node

    @property
    def nodes(self) -> list[Node]:
        """In the order in which the calls were made."""
        return [self._spoken[number].node for number in sorted(self._spoken)]

    def place(self, messages: Sequence[Message], tools: str | None, *, any_system: bool = False) -> CallPlace:
        """Behind the answer that the longest part of the history agrees with, if all that follows is no answer.

        Of several answers that agree the newest one. Without `tools` their digest doesn't count. `any_system`: the
        first system message may differ; it is new then, behind the results of tools.
        """
        best: tuple[int, bool, int] | None = None
        for number, spoken in self._spoken.items():
            if tools not in (None, spoken.tools):
                continue
            exact = _begins_with(messages, spoken.messages)
            if exact or (any_system and _begins_with(messages, _with_system_of(messages, spoken.messages))):
                best = max(best or (0, False, 0), (len(spoken.messages), exact, number))
        whole = tuple(messages)
        if best is None:
            return CallPlace(None, whole)
        length, exact, number = best
        if not (new := whole[length:]) or any(message.role == "assistant" for message in new):
            return CallPlace(None, whole)
        if not exact:
            results = next((place for place, message in enumerate(new) if message.role != "tool"), len(new))
            new = (*new[:results], whole[0], *new[results:])
        return CallPlace(self._spoken[number], new)

    def cut(self, messages: Sequence[Message], tools: str) -> int | None:
        """The node whose answer its budget has cut, where these messages are all that was said up to its end."""
        for number in sorted(self._spoken, reverse=True):
            spoken = self._spoken[number]
            same = spoken.tools == tools and len(spoken.messages) == len(messages)
            cut = spoken.node.result.truncated and spoken.messages[-1].text.strip()
            if same and cut and _begins_with(messages, spoken.messages):
                return number
        return None

    def place_ids(self, ids: Ids) -> int | None:
        """The node whose path is the longest beginning of these ids; None for a root."""
        for number in sorted(self._length, key=lambda number: (-self._length[number], -number)):
            if self._length[number] <= len(ids) and np.array_equal(ids[: self._length[number]], self.ids(number)):
                return number
        return None

    def ids(self, number: int) -> Ids:
        """All ids up to the end of a node's answer `[tokens]`."""
        parts = [part for node in path_of(self.nodes, number) for part in (node.given, node.result.output_ids)]
        return as_ids(np.concatenate(parts))

    def add(self, node: Node, messages: Sequence[Message], tools: str) -> None:
        """An answer was sampled. `messages` ends with it."""
        before = 0 if node.parent is None else self._length[node.parent]
        self._length[node.number] = before + len(node.given) + len(node.result.output_ids)
        self._spoken[node.number] = Spoken(node, tuple(messages), tools)

    def tokens(self, without: int | None = None) -> int:
        """Tokens of all branches as they would be stored: the paths to the leaves, but for the one to `without`."""
        inner = {spoken.node.parent for spoken in self._spoken.values()} | {without}
        return sum(length for number, length in self._length.items() if number not in inner)


def _with_system_of(messages: Sequence[Message], known: Sequence[Message]) -> Sequence[Message]:
    """Known messages with the system message of these, where both begin with one."""
    both = messages and known and messages[0].role == known[0].role == "system"
    return (messages[0], *known[1:]) if both else known


def _begins_with(messages: Sequence[Message], known: Sequence[Message]) -> bool:
    return len(messages) >= len(known) and all(ours.same(theirs) for ours, theirs in zip(known, messages, strict=False))
