"""A real Redis with the configuration of a run, which speaks by the certificates of a directory."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from areal.plan.redis_conf import RedisPlaces, acl_file, redis_text
from support.redis_server import free_port

PASSWORDS = {"controller": "one-secret-word", "trainer": "another-word", "worker": "a-third-word"}


@contextlib.contextmanager
def running(directory: Path, certificates: Path | None) -> Iterator[int]:
    """The port of a Redis with the configuration of a run."""
    port, binary = free_port(), shutil.which("redis-server")
    assert binary, "redis-server is not installed"
    (directory / "users.acl").write_text(acl_file("job", PASSWORDS, by_tls=certificates is not None))  # type: ignore[arg-type]
    places = RedisPlaces("127.0.0.1", port, directory, directory / "users.acl", certificates)
    (directory / "redis.conf").write_text(redis_text(1e6, places))
    process = subprocess.Popen([binary, str(directory / "redis.conf")], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(20)
