"""A real Redis of a test's own, on a free port of loopback, with the persistence a run has."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import redis
from areal.plan.roles import free_ports


def free_port() -> int:
    """A port nobody listens on now, and none that a connection will be given."""
    return free_ports(1)[0]


class RedisServer:
    """One redis-server process; its data outlives `kill` and `restart`, not its directory."""

    def __init__(self, directory: Path, port: int = 0, aclfile: Path | None = None, *, fsync: str = "everysec") -> None:
        self.directory = directory
        self.port = port or free_port()
        self.aclfile = aclfile
        self._fsync = fsync
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, directory: Path, port: int = 0, aclfile: Path | None = None) -> RedisServer:
        """A running server."""
        server = cls(directory, port, aclfile)
        server.restart()
        return server

    @property
    def address(self) -> str:
        """As clients take it."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def aof(self) -> Path:
        """The file that the newest writes are appended to."""
        return max((self.directory / "appendonlydir").glob("*.incr.aof"))

    def restart(self, timeout_s: float = 20.0) -> None:
        """Starts the process, after `kill` or `stop` with the data it left, and waits until it answers."""
        assert self._process is None, "it runs"
        binary = shutil.which("redis-server")
        assert binary, "redis-server is not installed"
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", self._fsync, "--aof-load-truncated", "yes"]
        command += ["--maxmemory-policy", "noeviction", "--logfile", str(self.directory / "redis.log")]
        if self.aclfile is not None:
            command += ["--aclfile", str(self.aclfile)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            assert self._process.poll() is None, (self.directory / "redis.log").read_text()
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL: what was not written yet is lost."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """A clean end; does nothing when it does not run."""
        if self._process is not None:
            self._signal(signal.SIGTERM)

    def cut_tail(self, size: int) -> None:
        """Loses the last bytes of the append-only file, as a power cut does. Only while it does not run."""
        assert self._process is None, "it runs"
        os.truncate(self.aof, max(0, self.aof.stat().st_size - size))

    def _signal(self, number: int) -> None:
        assert self._process is not None, "it does not run"
        os.kill(self._process.pid, number)
        self._process.wait(timeout=20)
        self._process = None

    def _answers(self) -> bool:
        """Whether the port speaks Redis, a refused login included."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(64)
        except OSError:
            return False
        return answer.startswith((b"+PONG", b"-NOAUTH"))

    def flush(self) -> None:
        """Empties it. Only without an ACL file."""
        with redis.Redis(port=self.port) as client:
            client.flushall()
