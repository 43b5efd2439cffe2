"""A conversation with a driver in a cell: frames over a stream socket, each of bounded length.

A frame is its length as 4 bytes, little-endian, and that many bytes. What comes from the cell is hostile: a length
above the bound ends the conversation before anything is read for it.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable

from areal.errors import ArealError

from areal_judge.sandbox.values import RunEnding

MAX_FRAME_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")


class FrameError(ArealError):
    """The cell sent what is no frame: too long, or cut off."""


class CellSession:
    """The holder's end. Made by `Sandbox.session`."""

    def __init__(
        self,
        channel: socket.socket,
        ended: asyncio.Future[RunEnding],
        kill: Callable[[str], None],
        max_frame_bytes: int,
    ) -> None:
        self._channel = channel
        self._ended = ended
        self._kill = kill
        self._max = max_frame_bytes
        self._buffer = bytearray()
        channel.setblocking(False)

    async def send(self, frame: bytes) -> None:
        """Writes one frame. A cell that closed its end is no error here: `receive` tells. Raises FrameError when it is
        longer than the bound.
        """
        if len(frame) > self._max:
            raise FrameError(f"a frame of {len(frame)} bytes is longer than {self._max}")
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            await asyncio.get_running_loop().sock_sendall(self._channel, _LENGTH.pack(len(frame)) + frame)

    async def receive(self, timeout_s: float) -> bytes | None:
        """The next frame, None when the cell closed its end.

        Raises:
            TimeoutError: no whole frame in time; what came is kept for the next call.
            FrameError: longer than the bound, or the end came within a frame.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            while True:
                if len(self._buffer) >= 4:
                    (size,) = _LENGTH.unpack_from(self._buffer)
                    if size > self._max:
                        raise FrameError(f"a frame of {size} bytes is longer than {self._max}")
                    if len(self._buffer) >= 4 + size:
                        frame = bytes(self._buffer[4 : 4 + size])
                        del self._buffer[: 4 + size]
                        return frame
                try:
                    data = await loop.sock_recv(self._channel, 1 << 16)
                except ConnectionError:
                    data = b""
                if not data:
                    if self._buffer:
                        self._buffer.clear()
                        raise FrameError("the cell ended within a frame")
                    return None
                self._buffer += data

    async def finish(self, grace_s: float = 0.2) -> RunEnding:
        """Shuts the channel down, waits for the program's end, kills it when that takes longer than the grace."""
        shut_down(self._channel)
        done, _ = await asyncio.wait([self._ended], timeout=grace_s)
        if not done:
            self._kill("cancel")
        return await asyncio.shield(self._ended)

    async def over(self) -> RunEnding:
        """Waits for the program's end, whoever ends it. Raises InfraError."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Ends the program now; `finish` says how it went."""
        self._kill("cancel")


def shut_down(channel: socket.socket) -> None:
    """Both ends read that it is over; the descriptor stays."""
    with contextlib.suppress(OSError):  # the other end is gone
        channel.shutdown(socket.SHUT_RDWR)


def close(channel: socket.socket) -> None:
    """Closes the descriptor, of which the event loop forgets whoever still reads or writes.

    Its number is given out again at once. Were it still watched, the next channel of that number would not be.
    """
    loop = asyncio.get_running_loop()
    loop.remove_reader(channel)
    loop.remove_writer(channel)
    channel.close()
