"""What the arena's attacks reach for: files, servers, processes; and the eyes that see whether they got there."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_VICTIM = """
import ctypes, os, sys
secret = os.environ["AREAL_SECRET"]
room = ctypes.create_string_buffer(("in memory " + secret).encode().ljust(256, b"."))
whole = room.raw
print(ctypes.addressof(room), flush=True)
for line in sys.stdin:
    print(int(room.raw == whole), flush=True)
"""
_SAMPLE_S = 0.1


@dataclass
class Victim:
    """A process of the service's user that attacks may try to end, stop, trace, read or change."""

    process: subprocess.Popen[bytes]
    address: int
    settings: str

    @staticmethod
    def start(secret: str, wrap: Sequence[str]) -> Victim:
        process = subprocess.Popen(
            [*wrap, sys.executable, "-I", "-S", "-c", _VICTIM, secret],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"AREAL_SECRET": secret, "PATH": os.environ["PATH"]},
        )  # fmt: skip
        assert process.stdout is not None
        address = int(process.stdout.readline())
        return Victim(process, address, _settings(process.pid))

    def harm(self) -> str:
        """What has befallen it; empty when nothing has."""
        if self.process.poll() is not None:
            return f"it ended with {self.process.returncode}"
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        state = next(line for line in status.splitlines() if line.startswith("State:"))
        if state.split()[1] in "tT" or "TracerPid:\t0\n" not in status:
            return f"it is traced or stopped: {state}"
        if _settings(self.process.pid) != self.settings:
            return "its settings were changed"
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], 5)[0]:
            return "it doesn't answer"
        return "" if self.process.stdout.readline() == b"1\n" else "its memory was changed"

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


def _settings(pid: int) -> str:
    return Path(f"/proc/{pid}/oom_score_adj").read_text() + Path(f"/proc/{pid}/limits").read_text()


@dataclass
class Servers:
    """A server of each kind, and how many visitors they had."""

    mark: str
    directory: str
    visitors: int = 0
    ports: dict[str, object] = field(default_factory=dict)
    sockets: list[socket.socket] = field(default_factory=list)

    def open(self) -> None:
        tcp = self._add(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        udp = self._add(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        names = {"abstract_stream": f"{self.mark}s", "abstract_datagram": f"{self.mark}d"}
        files = {
            "socket_file": f"{self.directory}/{self.mark}.s",
            "socket_file_datagram": f"{self.directory}/{self.mark}.d",
        }
        for kind, name, path in zip(
            (socket.SOCK_STREAM, socket.SOCK_DGRAM), names.values(), files.values(), strict=True
        ):
            self._add(socket.AF_UNIX, kind, "\0" + name)
            self._add(socket.AF_UNIX, kind, path)
            os.chmod(path, 0o777)
        self.ports = {"tcp_port": tcp.getsockname()[1], "udp_port": udp.getsockname()[1], **names, **files}

    def _add(self, family: int, kind: int, address: object) -> socket.socket:
        made = socket.socket(family, kind)
        made.bind(address)  # type: ignore[arg-type]
        if kind == socket.SOCK_STREAM:
            made.listen(16)
        made.setblocking(False)
        self.sockets.append(made)
        return made

    def look(self) -> int:
        """How many visitors there were up to now."""
        for one in self.sockets:
            with contextlib.suppress(BlockingIOError):
                while True:
                    if one.type & socket.SOCK_STREAM == socket.SOCK_STREAM and one.type & 0xF == 1:
                        one.accept()[0].close()
                    else:
                        one.recv(64)
                    self.visitors += 1
        return self.visitors


def processes_named(mark: str) -> int:
    """How many processes have a mark for a name."""
    found = 0
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{pid}/comm").read_text().strip() == mark[:15]
    return found


def leftovers(mark: str, key: int, places: Sequence[str]) -> list[str]:
    """Files with the mark, IPC with the key, a host name."""
    found = []
    for place in places:
        with contextlib.suppress(OSError):
            found += [f"{place}/{name}" for name in os.listdir(place) if name.startswith(mark)]
    for kind in ("shm", "sem", "msg"):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
            found += [f"{kind} {key}" for line in lines if int(line.split()[0]) == key]
    if socket.gethostname() == mark:
        found.append("hostname")
    return found


class Watch:
    """Samples while runs live: locks on a shared file, processes by name."""

    def __init__(self, shared_file: str, marks: Sequence[str]) -> None:
        self.locked = False
        self.most: dict[str, int] = dict.fromkeys(marks, 0)
        self._file = shared_file
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @contextlib.contextmanager
    def on(self) -> Iterator[Watch]:
        self._thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._thread.join()

    def _look(self) -> None:
        with open(self._file, "rb") as file:
            while not self._over.wait(_SAMPLE_S):
                self.locked = self.locked or _is_locked(file.fileno())
                names: dict[str, int] = {}
                for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
                    with contextlib.suppress(OSError):
                        name = Path(f"/proc/{pid}/comm").read_text().strip()
                        names[name] = names.get(name, 0) + 1
                for mark in self.most:
                    self.most[mark] = max(self.most[mark], names.get(mark[:15], 0))


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0)
    return struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK


class MemoryOfAll:
    """What everything in the arena's cgroup has taken, at most, since `reset`."""

    def __init__(self, group: str) -> None:
        self._group = Path(group) if group else None

    def __bool__(self) -> bool:
        return self._group is not None

    def reset(self) -> int:
        assert self._group is not None
        (self._group / "memory.max_usage_in_bytes").write_text("0")
        return self.peak()

    def peak(self) -> int:
        assert self._group is not None
        return int((self._group / "memory.max_usage_in_bytes").read_text())


def loopback_up() -> None:
    """Loopback of a new network namespace is down."""
    with socket.socket() as one:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(one, 0x8913, request))[1]
        fcntl.ioctl(one, 0x8914, struct.pack("16sH14x", b"lo", flags | 1))


def mount_queues(directory: str) -> None:
    """Mounts this IPC namespace's POSIX message queues as files; a kernel without them leaves it empty."""
    os.mkdir(directory)
    if ctypes.CDLL(None, use_errno=True).mount(b"none", directory.encode(), b"mqueue", 0, None):
        error = ctypes.get_errno()
        if error != errno.ENODEV:
            raise OSError(error, os.strerror(error), directory)
