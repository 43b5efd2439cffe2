"""Google Cloud Storage's XML requests on loopback, over memory or over Google's own storage testbench.

The public emulators answer only some of what the store's client asks. Here a front speaks the client's requests, and
what decides — whether a conditional write is done, which generation it makes — is memory, or the testbench
(github.com/googleapis/storage-testbench), so that the same cases run against both.
"""

from __future__ import annotations

import itertools
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import httpx
from support.s3_server import BUCKET, free_port

TOKEN = "loopback"
_GENERATION, _MATCH = "x-goog-generation", "x-goog-if-generation-match"


class GoogleObjects(Protocol):
    """Objects of one bucket, with the generation of each."""

    def put(self, key: str, data: bytes, match: str | None) -> int | None: ...
    def get(self, key: str) -> tuple[bytes, int] | None: ...
    def delete(self, key: str) -> bool: ...
    def sizes(self, prefix: str) -> dict[str, tuple[int, int]]: ...


class MemoryObjects:
    """Generations as Google documents them: a new one for each write, 0 for an object that isn't there."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[bytes, int]] = {}
        self._next = itertools.count(1_700_000_000_000_000)
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes, match: str | None) -> int | None:
        with self._lock:
            there = self._held.get(key)
            if match is not None and int(match) != (there[1] if there else 0):
                return None
            self._held[key] = data, next(self._next)
            return self._held[key][1]

    def get(self, key: str) -> tuple[bytes, int] | None:
        return self._held.get(key)

    def delete(self, key: str) -> bool:
        return self._held.pop(key, None) is not None

    def sizes(self, prefix: str) -> dict[str, tuple[int, int]]:
        return {key: (len(data), made) for key, (data, made) in sorted(self._held.items()) if key.startswith(prefix)}


class TestbenchObjects:
    """The testbench's objects: written and read by its XML requests, listed and deleted by its JSON ones."""

    __test__ = False

    def __init__(self, port: int) -> None:
        self._client = httpx.Client(base_url=f"http://localhost:{port}", timeout=30)
        made = self._client.post("/storage/v1/b?project=loopback", json={"name": BUCKET})
        assert made.status_code in (200, 409), made.text

    def put(self, key: str, data: bytes, match: str | None) -> int | None:
        told = {} if match is None else {_MATCH: match}
        answer = self._client.put(f"/{BUCKET}/{quote(key)}", content=data, headers=told)
        if answer.status_code == 412:
            return None
        assert answer.status_code == 200, answer.text
        return int(self._client.get(self._object(key)).json()["generation"])

    def get(self, key: str) -> tuple[bytes, int] | None:
        answer = self._client.get(f"/{BUCKET}/{quote(key)}")
        return None if answer.status_code == 404 else (answer.content, int(answer.headers[_GENERATION]))

    def delete(self, key: str) -> bool:
        return self._client.delete(self._object(key)).is_success

    def sizes(self, prefix: str) -> dict[str, tuple[int, int]]:
        found = self._client.get(f"/storage/v1/b/{BUCKET}/o", params={"prefix": prefix}).json().get("items", [])
        return {one["name"]: (int(one.get("size", 0)), int(one["generation"])) for one in found}

    @staticmethod
    def _object(key: str) -> str:
        return f"/storage/v1/b/{BUCKET}/o/{quote(key, safe='')}"


@contextmanager
def google_testbench(program: Path, folder: Path) -> Iterator[TestbenchObjects]:
    """The testbench's program as a process, with an empty bucket."""
    port = free_port()
    with (folder / "testbench.log").open("wb") as log:
        process = subprocess.Popen([program, "--port", f"{port}"], stdout=log, stderr=log, cwd=folder)
    try:
        deadline = time.monotonic() + 60
        while not _answers(port):
            assert time.monotonic() < deadline, (folder / "testbench.log").read_text()
            time.sleep(0.2)
        yield TestbenchObjects(port)
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def google_store(objects: GoogleObjects) -> Iterator[dict[str, str]]:
    """A server over those objects; the variables of the environment by which a client finds it."""

    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
            if self._refused(bucket):
                return
            if not key:
                asked = parse_qs(urlsplit(self.path).query)
                self._tell(200, _listing(objects.sizes(asked.get("prefix", [""])[0])))
            elif (found := objects.get(key)) is None:
                self._tell(404)
            else:
                self._object(*found)

        do_HEAD = do_GET

        def do_PUT(self) -> None:
            bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self._refused(bucket):
                return
            made = objects.put(key, data, self.headers.get(_MATCH))
            self._tell(412 if made is None else 200, b"", {} if made is None else _marks(made))

        def do_DELETE(self) -> None:
            bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
            if not self._refused(bucket):
                self._tell(204 if objects.delete(key) else 404)

        def _refused(self, bucket: str) -> bool:
            refusal = 401 if self.headers.get("Authorization") != f"Bearer {TOKEN}" else 404 * (bucket != BUCKET)
            if refusal:
                self._tell(refusal)
            return refusal != 0

        def _object(self, data: bytes, generation: int) -> None:
            told = _marks(generation)
            if (asked := self.headers.get("Range")) is not None:
                start, _, end = asked.removeprefix("bytes=").partition("-")
                last = min(int(end), len(data) - 1)
                told["Content-Range"] = f"bytes {start}-{last}/{len(data)}"
                self._tell(206, data[int(start) : last + 1], told)
            else:
                self._tell(200, data, told)

        def _tell(self, status: int, body: bytes = b"", told: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (told or {}).items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", f"{len(body)}")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield {"GOOGLE_BASE_URL": f"http://127.0.0.1:{server.server_port}", "GOOGLE_BEARER_TOKEN": TOKEN}
    finally:
        server.shutdown()
        server.server_close()


def _answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _marks(generation: int) -> dict[str, str]:
    return {"ETag": f'"{generation:x}"', _GENERATION: f"{generation}", "Last-Modified": formatdate(usegmt=True)}


def _listing(sizes: dict[str, tuple[int, int]]) -> bytes:
    rows = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>&quot;{made:x}&quot;</ETag>"
        f"<Generation>{made}</Generation><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for key, (size, made) in sizes.items()
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()
