"""A conversation with a driver in a cell: frames over a stream socket, each of bounded length.

A frame is its length as 4 bytes, little-endian, and that many bytes. What comes from the cell is hostile: a length
above the bound ends the conversation before anything is read for it.
"""

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from areal.errors import ArealError

from areal_judge.sandbox.values import Ending, Limits, RunEnding

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


# ---- Maps what a zygote saw of a run to how it ended. Pure


_NEARLY = 0.95  # of the memory limit: above it, an end by signal is put down to memory where no cgroup counts
_SPENT = 0.6  # of the CPU limit: above it, a SIGKILL that nobody here sent is the kernel's, which counts in ticks
_TAIL_BYTES = 4096
_OUT_OF_MEMORY = (b"MemoryError", b"std::bad_alloc", b"OutOfMemoryError", b"heap out of memory", b"out of memory")
_OUT_OF_ROOM = (b"[Errno 28]", b"No space left on device", b"[Errno 27]", b"File too large")
_OUT_OF_TASKS = (b"can't start new thread", b"Resource temporarily unavailable", b"[Errno 11]")


@dataclass(frozen=True)
class EndEvidence:
    """What is known of an end. Times are seconds."""

    status: int  # as wait gives it
    reason: str  # why it was killed: wall, output, cancel, or nothing
    wall_s: float
    cpu_s: float  # of the program
    cpu_all_s: float  # with the cell's own setup, as the kernel counts it against the limit
    rss_bytes: int
    out_of_memory: bool  # the cgroup killed one of its processes
    tasks_refused: bool
    disk_full: bool
    stderr: bytes


@dataclass(frozen=True)
class Verdict:
    ending: Ending
    exit_code: int | None = None
    signal: int | None = None


def verdict(seen: EndEvidence, limits: Limits) -> Verdict:
    """The first of these that holds: killed by us, out of time, memory, disk or processes; otherwise as it ended.

    A limit on memory, disk or processes is named only for a program that ended badly. Memory: its cgroup killed it; or
    it was killed by a signal above 95 % of its limit; or its last words are those of an allocation that failed. Disk:
    the scratch was full or a write was cut off for its size. Processes: the cgroup refused one, or its last words say
    so.
    """
    code = os.waitstatus_to_exitcode(seen.status)
    ended = Verdict(Ending.EXITED, exit_code=code) if code >= 0 else Verdict(Ending.SIGNALED, signal=-code)
    if seen.reason == "output":
        return Verdict(Ending.OUTPUT_LIMIT)
    if seen.reason == "cancel":
        return Verdict(Ending.CANCELLED)
    killed = seen.reason == "wall"
    if seen.out_of_memory and (killed or code != 0):
        return Verdict(Ending.MEMORY_LIMIT)
    exhausted = ended.signal == signal.SIGKILL and not killed and seen.cpu_all_s >= _SPENT * limits.cpu_s
    if exhausted or ended.signal == signal.SIGXCPU or seen.cpu_s > limits.cpu_s:
        return Verdict(Ending.CPU_LIMIT)
    if killed or seen.wall_s > limits.wall_s:
        return Verdict(Ending.WALL_LIMIT)
    if code == 0:
        return ended
    last = seen.stderr[-_TAIL_BYTES:].rstrip().rpartition(b"\n")[2]
    tail = seen.stderr[-_TAIL_BYTES:]
    heavy = code < 0 and seen.rss_bytes > _NEARLY * limits.memory_bytes
    if heavy or last.startswith(_OUT_OF_MEMORY[:1]) or any(words in tail for words in _OUT_OF_MEMORY[1:]):
        return Verdict(Ending.MEMORY_LIMIT)
    if ended.signal == signal.SIGXFSZ or seen.disk_full or any(words in last for words in _OUT_OF_ROOM):
        return Verdict(Ending.DISK_LIMIT)
    if seen.tasks_refused or any(words in last for words in _OUT_OF_TASKS):
        return Verdict(Ending.PROCESS_LIMIT)
    return ended
