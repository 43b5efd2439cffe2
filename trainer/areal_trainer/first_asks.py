"""Work of rank 0 on a thread beside the pass that all ranks compute, one piece after the other.

For what only rank 0 can do, such as calls over a network: the ranks go on, and meet where the result is wanted. The
thread never keeps a process that fails.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

from areal_trainer.engine.group import Ranks, wait_together
from areal_trainer.engine.message import Message

_End = tuple[None, None]


class FirstAsks:
    """Every rank has one, and calls it in the same order."""

    def __init__(self, ranks: Ranks, name: str) -> None:
        self._ranks = ranks
        self._queue: queue.SimpleQueue[tuple[Future[Message], Callable[[], Message]] | _End] = queue.SimpleQueue()
        if ranks.first:
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def begin(self, work: Callable[[], Message]) -> Callable[[], Message]:
        """Rank 0 starts `work`; what is returned waits for it, and gives its message on every rank.

        What `work` raises, rank 0 raises. Rank 0 speaks while the others wait, however long it takes.
        """
        if not self._ranks.first:
            return self._told
        future: Future[Message] = Future()
        self._queue.put((future, work))

        def found() -> Message:
            wait_together(self._ranks, lambda within_s: bool(wait([future], within_s).done))
            return self._ranks.tell(future.result())

        return found

    def close(self) -> None:
        """End the thread, after what it works at."""
        self._queue.put((None, None))

    def _told(self) -> Message:
        wait_together(self._ranks, None)
        return self._ranks.tell(None)

    def _run(self) -> None:
        while True:
            future, work = self._queue.get()
            if future is None or work is None:
                return
            try:
                future.set_result(work())
            except BaseException as error:  # raised by who waits for it
                future.set_exception(error)
