"""An S3 server on loopback, and a proxy before it that fails as asked."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kube.harness.tools import tool

ACCESS, SECRET, BUCKET = "loopback", "not-a-secret", "runs"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class S3Server:
    """versitygw over a directory: real signatures, real conditional writes."""

    root: Path
    port: int = field(default_factory=free_port)
    address: str = "127.0.0.1"
    within: tuple[str, ...] = ()  # the command that runs another in the namespaces where this address is
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        for name in ("data", "iam"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / "data" / BUCKET).mkdir(exist_ok=True)
        command = [
            *self.within, tool("versitygw"), "--access", ACCESS, "--secret", SECRET,
            "--port", f"{self.address}:{self.port}", "--iam-dir", str(self.root / "iam"),
            "posix", str(self.root / "data"),
        ]  # fmt: skip
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.root)
        knock = f"import socket; socket.create_connection(({self.address!r}, {self.port}), 1)"
        deadline = time.monotonic() + 30
        while subprocess.run([*self.within, sys.executable, "-c", knock], capture_output=True).returncode:
            assert time.monotonic() < deadline, (self.root / "log").read_text()[-2000:]
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @property
    def options(self) -> dict[str, str]:
        """Variables of the environment by which a client finds it."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://{self.address}:{self.port}",
            "AWS_REGION": "us-east-1",
        }


@contextmanager
def s3_server(root: Path, address: str = "127.0.0.1", within: tuple[str, ...] = ()) -> Iterator[S3Server]:
    """A running one, with an empty bucket."""
    server = S3Server(root, address=address, within=within)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@dataclass
class FaultyProxy:
    """Passes requests on. `lost`: answers to so many writes are thrown away after the write; `busy`: so many requests
    are answered by 503; each counts down. `expired`: as S3 answers credentials whose time is over."""

    target: int
    lost: int = 0
    busy: int = 0
    expired: bool = False
    seen: list[str] = field(default_factory=list)
    port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _next(self, what: str, request: str) -> bool:
        with self._lock:
            left = int(getattr(self, what))
            if left and (what != "lost" or request.startswith("PUT ")):
                setattr(self, what, left - 1)
                return True
            return False

    @contextmanager
    def running(self) -> Iterator[FaultyProxy]:
        """Listening on `port`."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                words = f"{self.command} {self.path}"
                proxy.seen.append(words)
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if proxy._next("busy", words):
                    self.send_response(503, "Slow Down")
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                if proxy.expired:
                    told = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
                    self.send_response(400, "Bad Request")
                    self.send_header("content-length", str(len(told)))
                    self.end_headers()
                    self.wfile.write(told)
                    return
                onward = HTTPConnection("127.0.0.1", proxy.target, timeout=30)
                onward.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    onward.putheader(name, value)
                onward.endheaders(body)
                answer = onward.getresponse()
                data = answer.read()
                if proxy._next("lost", words):
                    self.close_connection = True
                    self.connection.close()
                    return
                self.send_response_only(answer.status, answer.reason)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                size = answer.getheader("content-length") if self.command == "HEAD" else str(len(data))
                self.send_header("content-length", size or "0")
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

            def log_message(self, format: str, *args: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.port = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()
