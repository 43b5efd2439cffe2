"""HTTP server of a few pages, on a thread of its own.

The thread answers while the event loop is stuck: what the pages say must be safe to read from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_POLL_S = 0.05  # how long an end may take


@dataclass(frozen=True)
class Page:
    """One answer."""

    body: bytes
    status: int = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


class HttpPages:
    """Serves pages by path for the time of the block. Port 0 picks a free one."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Page]]) -> None:
        missing = Page(f"there are {', '.join(sorted(pages))}\n".encode(), HTTPStatus.NOT_FOUND)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0], lambda: missing)()
                self.send_response(page.status)
                self.send_header("Content-Type", page.content_type)
                self.send_header("Content-Length", str(len(page.body)))
                self.end_headers()
                self.wfile.write(page.body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes are not worth a line."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), name="pages", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def __enter__(self) -> HttpPages:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
