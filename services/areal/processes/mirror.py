"""Tee of a child's output: to its log file, and to our standard output, which becomes the container's log.

The file is bounded, because it may lie in the memory of a pod, or on a volume that a run must not fill; what a
container logs is its runtime's to bound.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

LIMIT_BYTES = 8 << 20
"""Of a log file; the one before it is kept beside it as `.1`."""

_CHUNK = 64 * 1024
_PATIENCE_S = 5.0  # of a reader whose writers are gone; it only drains the pipe


class Mirror:
    """`write_end`, a descriptor to give to a child and then to close: what is written there arrives at both places.

    A place that fails (a full volume) is left out from then on; the child never notices. Ends by itself when nobody
    holds the descriptor any more.
    """

    def __init__(self, path: Path, log: int, output: int, limit_bytes: int = LIMIT_BYTES) -> None:
        """Takes over `log`, the open file at `path`, and `output`; closes them at the end."""
        self._path = path
        self._log = log
        self._output = output
        self._limit = limit_bytes
        self._failed: set[int] = set()
        self._read, self.write_end = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._copy, name="mirror", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until everything that was written has arrived."""
        self._thread.join(_PATIENCE_S)

    def _copy(self) -> None:
        try:
            while data := os.read(self._read, _CHUNK):
                self._write(self._output, data)
                self._rotate(len(data))
                self._write(self._log, data)
        finally:
            for descriptor in (self._read, self._log, self._output):
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def _write(self, target: int, data: bytes) -> None:
        if target in self._failed:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(target, view) :]
        except OSError:
            self._failed.add(target)

    def _rotate(self, more: int) -> None:
        """Begin a new file where the next words would make this one too long."""
        with contextlib.suppress(OSError):
            if os.fstat(self._log).st_size + more <= self._limit:
                return
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            fresh = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            os.dup2(fresh, self._log, inheritable=False)
            os.close(fresh)
            self._failed.discard(self._log)
