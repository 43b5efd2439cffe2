"""An answer's tokens as they come, with those who watch it. Pure: watchers are plain callbacks."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from areal.workflow.generation import GenerationResult, Ids, Logprobs


class Growing:
    """Ids and log-probabilities of one answer so far; append-only until it is begun again."""

    def __init__(self) -> None:
        self.ids = array("i")
        self.logprobs = array("f")
        self._watchers: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, ids: Ids, logprobs: Logprobs) -> None:
        """Tokens came."""
        self.ids.extend(ids.tolist())
        self.logprobs.extend(logprobs.tolist())
        self.changed()

    def complete(self, result: GenerationResult) -> None:
        """All tokens are known: those that were not streamed are added."""
        told = len(self.ids)
        self.ids.extend(result.output_ids[told:].tolist())
        self.logprobs.extend(result.logprobs[told:].tolist())

    def clear(self) -> None:
        """The answer is sampled again."""
        self.ids, self.logprobs = array("i"), array("f")

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` at every change."""
        self._watchers.append(watcher)

    def leave(self, watcher: Callable[[], None]) -> None:
        """Call it no more."""
        self._watchers.remove(watcher)

    def changed(self) -> None:
        """Tell the watchers."""
        for watcher in tuple(self._watchers):
            watcher()
