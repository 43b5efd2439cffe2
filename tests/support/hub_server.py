"""A Hugging Face hub on loopback with one model, for the real client; contract: huggingface_hub's own requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "a" * 40


@contextmanager
def hub_of(name: str, model: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve the files of `model` as `name`; yields the address and the paths that were asked for.

    The revisions `main` and the commit are known. `gated/model` is gated, every other name unknown.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(path)
            files = sorted(file for file in model.iterdir() if file.is_file())
            if path in (f"/api/models/{name}/revision/main", f"/api/models/{name}/revision/{COMMIT}"):
                siblings = [{"rfilename": file.name} for file in files]
                self._answer(json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())
            elif path.startswith(f"/api/models/{name}/revision/"):
                self._refuse(404, "RevisionNotFound")
            elif path.startswith(f"/api/models/{name}/tree/"):
                self._answer(json.dumps([_entry(file) for file in files]).encode())
            elif path.startswith(f"/{name}/resolve/"):
                self._answer((model / path.rpartition("/")[2]).read_bytes(), of_file=True)
            elif path.startswith("/api/models/gated/model"):
                self._refuse(403, "GatedRepo")
            else:
                self._refuse(404, "RepoNotFound")

        do_HEAD = do_GET

        def _answer(self, body: bytes, *, of_file: bool = False) -> None:
            self.send_response(200)
            if of_file:
                self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
                self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def _entry(file: Path) -> dict[str, object]:
    return {
        "type": "file",
        "path": file.name,
        "size": file.stat().st_size,
        "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
    }
