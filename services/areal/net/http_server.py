"""HTTP server (uvicorn) in the running event loop. It handles no signals: its owner stops it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

from areal.net.listening import listen


class HttpServer:
    """Serves `app` on `host` and `port`, where 0 is a free port; running calls get `grace_s` at its end.

    `listener` is a socket that listens there already. With `context` it serves HTTPS.
    """

    def __init__(
        self,
        app: Starlette,
        host: str,
        port: int,
        *,
        grace_s: int,
        listener: socket.socket | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._where = (host, port)
        self._listener = listener
        self._server = _QuietServer(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=grace_s,
                ssl_context_factory=None if context is None else lambda *_: context,
            )
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> int:
        """Listen, in the running event loop; returns the port. Raises InfraError when it can't be had."""
        listener = self._listener or listen(*self._where)
        # asyncio sets it only where a socket was made with its protocol's number; without it every answer's body waits
        # for the acknowledgement of its head, 40 ms
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._task = asyncio.create_task(self._server.serve([listener]))
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """End it; running calls get a moment."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None of them."""
        yield
