"""A console that may go away: a closed pipe or terminal ends the printing, never the run."""

import io
import os
import sys
from typing import TextIO, cast

from rich.console import Console


class LossyStream(io.TextIOBase):
    """A text stream that drops everything from the first failed write on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        return not self.lost and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not self.lost:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self._lose()
        return len(text)

    def flush(self) -> None:
        if not self.lost:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._lose()

    def _lose(self) -> None:
        """Write to nowhere: what is still buffered would fail again when the interpreter ends."""
        self.lost = True
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        except (OSError, ValueError):
            return


def lossy_console(*, stderr: bool = False) -> Console:
    """Standard output, or error, as a console that outlives its terminal."""
    stream = (sys.stderr if stderr else sys.stdout) or open(os.devnull, "w")  # noqa: SIM115 (there is none where it was closed before the start)
    return Console(file=cast(TextIO, LossyStream(stream)))
