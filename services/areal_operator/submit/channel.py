"""A program that runs in a pod, spoken to over the API server's exec websocket."""

from __future__ import annotations

import json
import time
from types import TracebackType
from typing import Any

from areal.errors import InfraError

_STDERR, _ERROR = 2, 3  # channels of the exec protocol
_FRAME_BYTES = 128 << 10
_LONGEST = 800
_LAST_WORDS_S = 2.0  # for words on the way: who refuses sends them before it closes, so they are here or nearly
_AGAIN = "Submit again: what arrived is kept, only the rest is sent."


class PodChannel:
    """Standard input and output of the program. Closing it ends the program."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def __enter__(self) -> PodChannel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def write(self, data: bytes) -> None:
        """Send to standard input; blocks while the other side is slower. Raises InfraError when it is gone."""
        try:
            for start in range(0, len(data), _FRAME_BYTES):
                self._socket.write_stdin(data[start : start + _FRAME_BYTES])
        except Exception as error:  # the websocket library and the sockets below it raise many kinds
            raise self._broken(error) from error

    def line(self, timeout_s: float) -> bytes:
        """The next line of standard output."""
        try:
            line: bytes = self._socket.readline_stdout(timeout=timeout_s)
        except Exception as error:  # as above
            raise self._broken(error) from error
        if not line:
            late = self._socket.is_open()
            gone = "the pod didn't answer in time" if late else f"the program in the pod ended{self._last_words()}"
            raise InfraError(gone, fix=_AGAIN)
        return line

    def _broken(self, error: Exception) -> InfraError:
        """A write fails while the words that say why wait to be read: they come first, else the socket's own."""
        self._read_out()
        said = self._last_words() or f": {error}"
        return InfraError(f"the connection to the pod broke{said}", fix=_AGAIN)

    def _read_out(self) -> None:
        """Read what is left, to the end of the connection, and be done with it."""
        deadline = time.monotonic() + _LAST_WORDS_S
        try:
            while self._socket.is_open() and (left := deadline - time.monotonic()) > 0:
                self._socket.update(timeout=left)
        except Exception:  # the end, in one of its many kinds; what came before it is kept
            pass
        finally:
            self._socket.close()

    def _last_words(self) -> str:
        """Why it ended: what the API server says, and what the program wrote to standard error."""
        parts = (self._socket.read_channel(_ERROR), self._socket.read_channel(_STDERR))
        said = [_message(part) for part in parts if part]
        return "".join(f": {text}" for text in said if text)[-_LONGEST:]


def _message(said: bytes) -> str:
    """The message of a Status, or the text itself."""
    try:
        return str(json.loads(said).get("message", ""))
    except ValueError:
        return said.decode(errors="replace").strip()
