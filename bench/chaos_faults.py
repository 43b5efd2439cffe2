"""Faults of a running job, each put in and taken out: kill, stop, partition, a full disk, a torn write."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from support.job_run import VICTIMS, JobRun
from support.small_disk import fill

EDGES = {  # role → the servers that it dials by the resolved job
    "worker-0": ("controller", "redis", "reward_custom"),
    "generation-0": ("controller",),
    "trainer": ("controller", "redis"),
    "controller": ("redis",),
}
CUT = {  # role of the table → its edges
    "redis": [(role, "redis") for role in ("worker-0", "trainer", "controller")],
    "controller": [
        *((role, "controller") for role in ("worker-0", "generation-0", "trainer")),
        ("controller", "redis"),
    ],
    "worker": [("worker-0", server) for server in EDGES["worker-0"]],
    "agent": [("generation-0", "controller")],
    "reward": [("worker-0", "reward_custom")],
    "trainer": [("trainer", server) for server in EDGES["trainer"]],
}
TORN = {  # what is torn → its file, the newest by name
    "journal": "journal/controller.jsonl",
    "evidence": "evidence/trainer-*.jsonl",
    "store": "redis/appendonlydir/*.incr.aof",
}
PATIENCE_S = 60.0


class Forwarder:
    """TCP forwarder on loopback, a thread with an event loop. A cut edge takes connections and bytes, and holds them.

    What is held goes on when the edge is mended, as TCP sends again what a network lost.
    """

    def __init__(self, file: Path) -> None:
        self._targets = file.with_suffix(".targets")
        self._loop = asyncio.new_event_loop()
        self._open: dict[tuple[str, str], asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="forwarder")
        self._thread.start()
        ports = {role: {server: self._listen(role, server) for server in servers} for role, servers in EDGES.items()}
        file.write_text(json.dumps(ports))

    def cut(self, role: str) -> None:
        for edge in CUT[role]:
            self._loop.call_soon_threadsafe(self._open[edge].clear)

    def mend(self, role: str) -> None:
        for edge in CUT[role]:
            self._loop.call_soon_threadsafe(self._open[edge].set)

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _listen(self, role: str, server: str) -> int:
        async def listen() -> int:
            passes = self._open[(role, server)] = asyncio.Event()
            passes.set()
            made = await asyncio.start_server(lambda r, w: self._serve(server, passes, r, w), "127.0.0.1", 0)
            self._servers.append(made)
            return int(made.sockets[0].getsockname()[1])

        return asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)

    async def _serve(
        self, server: str, passes: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await passes.wait()
        host, _, port = json.loads(self._targets.read_text())[server].rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()  # as a port that nobody listens on
            return
        for task in (pump(reader, far_writer, passes), pump(far_reader, writer, passes)):
            running = asyncio.create_task(task)
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event) -> None:
    """Bytes of one direction, while they pass."""
    try:
        while chunk := await reader.read(1 << 16):
            await passes.wait()
            writer.write(chunk)
            await writer.drain()
        await passes.wait()
    except OSError:
        pass
    finally:
        writer.close()


def victim(run: JobRun, role: str) -> psutil.Process:
    """The role's process; of torchrun and its rank, the rank. Waits for one."""
    run.wait_for(f"a process of {role}", lambda: bool(run.processes(*VICTIMS[role])), PATIENCE_S)
    return run.processes(*VICTIMS[role])[-1]


def kill(run: JobRun, role: str) -> float:
    """SIGKILL; returns when, the moment before the signal."""
    process = victim(run, role)
    at = time.time()
    process.send_signal(signal.SIGKILL)
    return at


@contextlib.contextmanager
def stopped(run: JobRun, role: str) -> Iterator[float]:
    """SIGSTOP, and SIGCONT at the end where the process is still there."""
    process = victim(run, role)
    at = time.time()
    process.send_signal(signal.SIGSTOP)
    try:
        yield at
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def partition(forwarder: Forwarder, role: str) -> Iterator[float]:
    """No byte passes between the role and those that it talks to."""
    at = time.time()
    forwarder.cut(role)
    try:
        yield at
    finally:
        forwarder.mend(role)


@contextlib.contextmanager
def full_disk(run: JobRun) -> Iterator[float]:
    """The disk of the run's directory has no byte left; others of the run may free some, and it is filled again."""
    over = threading.Event()
    ballast = fill(run.run_dir.parent)
    at = time.time()  # full since a moment ago: filling takes seconds

    def keep_full() -> None:
        while not over.wait(0.05):
            free = os.statvfs(run.run_dir).f_bavail
            if free:
                with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
                    file.write(bytes(4096 * free))

    filler = threading.Thread(target=keep_full, daemon=True, name="filler")
    filler.start()
    try:
        yield at
    finally:
        over.set()
        filler.join(10)
        ballast.unlink(missing_ok=True)


def cut_off(run: JobRun) -> float:
    """SIGKILL of `areal run`, with which all its roles die; returns when."""
    assert run.process is not None
    family = psutil.Process(run.process.pid).children(recursive=True)
    at = time.time()
    run.process.kill()
    run.process.wait(PATIENCE_S)
    _, left = psutil.wait_procs(family, PATIENCE_S)
    if left:
        raise RuntimeError(f"processes outlived the run: {[one.pid for one in left]}")
    return at


def tear(run: JobRun, what: str, draw: random.Random) -> int:
    """Cut a file's last record at a random byte of it; returns how many bytes are left of the record."""
    path = max(run.run_dir.glob(TORN[what]), key=lambda one: (one.stat().st_mtime_ns, one.name))
    content = path.read_bytes()
    if what == "store":
        begin = content.rfind(b"\r\n*", 0, len(content) - 2) + 2  # a command of the append-only file begins with *
    else:
        begin = content.rstrip(b"\n").rfind(b"\n") + 1
    left = draw.randrange(1, max(2, len(content) - begin))
    os.truncate(path, begin + left)
    return left
