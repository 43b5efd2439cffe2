"""A child's output in two places: its log file, and our own standard output, which a container's log is made of."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

_CHUNK = 64 * 1024
_PATIENCE_S = 5.0  # of a reader whose writers are gone; it only drains the pipe


class Mirror:
    """`write_end`, a descriptor to give to a child and then to close: what is written there arrives at all `targets`.

    A target that fails (a full volume) is left out from then on; the child never notices. Ends by itself when nobody
    holds the descriptor any more.
    """

    def __init__(self, targets: Sequence[int]) -> None:
        """Takes over `targets`, and closes them at the end."""
        self._targets = list(targets)
        self._read, self.write_end = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._copy, name="mirror", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until everything that was written has arrived."""
        self._thread.join(_PATIENCE_S)

    def _copy(self) -> None:
        try:
            while data := os.read(self._read, _CHUNK):
                self._targets = [target for target in self._targets if _whole(target, data)]
        finally:
            os.close(self._read)
            for target in self._targets:
                with contextlib.suppress(OSError):
                    os.close(target)


def _whole(target: int, data: bytes) -> bool:
    """Write all of it; False when the target refuses."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(target, view) :]
    except OSError:
        return False
    return True
