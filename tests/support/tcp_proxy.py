"""A TCP proxy on loopback that can fall silent or hang up: a network between a client and a real server."""

from __future__ import annotations

import asyncio
import contextlib


class TcpProxy:
    """Forwards to `port` of loopback. While `silent`, bytes are taken and go nowhere, and connections stay open."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.silent = False
        self.accepted = 0
        self.seen = bytearray()  # what went by, in both directions

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._writers) // 2

    def hang_up(self) -> None:
        """Reset every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers |= {writer, far_writer}
            for task in (self._pump(reader, far_writer), self._pump(far_reader, writer)):
                running = asyncio.create_task(task)
                self._tasks.add(running)
                running.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(1 << 16):
                self.seen += chunk
                if not self.silent:
                    writer.write(chunk)
                    await writer.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
