"""TCP proxy: connections to a listener of this machine, each carried to a stream that is opened for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from areal.errors import ArealError

_CHUNK = 64 << 10


class Forward:
    """Carries while it is entered. `opened` gives the other end, as a socket; it may block and raise."""

    def __init__(self, listener: socket.socket, opened: Callable[[], Any], say: Callable[[str], None]) -> None:
        self._listener = listener
        self._opened = opened
        self._say = say
        self._accepting = threading.Thread(target=self._accept, name="forward", daemon=True)

    def __enter__(self) -> Forward:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._listener.close()
        self._accepting.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), name="forwarded", daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near:
            try:
                far = self._opened()
            except ArealError as error:
                self._say(error.message)
                return
            back = threading.Thread(target=_pump, args=(far, near), name="forwarded-back", daemon=True)
            back.start()
            _pump(near, far)
            far.close()
            back.join()


def _pump(source: Any, target: Any) -> None:
    """Until one of them ends; then `source`'s peer hears it."""
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
