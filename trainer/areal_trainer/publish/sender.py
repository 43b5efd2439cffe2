"""Sender processes of pairs: rank 0 of a process group whose other ranks are one server's engine.

A process of its own, because a broadcast to a peer that is gone can't be ended from within: NCCL spins, and its
watchdog ends the whole process. Killing a sender takes back everything it held. A fork server has imported torch and
forks them; `SenderProcess` is the trainer's side of one, a JSON line each way. Weights travel to it by shared memory;
it builds buckets on its device, one ahead of what is sent.
"""

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import torch
from areal.broadcast import ProcessGroup, join_group, rendezvous_server
from areal.errors import InfraError
from areal.net.kept_stream import SILENCE_S
from areal.processes.keeper import die_with
from areal.v1 import weights_pb2 as wire
from areal.v1 import weights_pb2_grpc as rpc
from torch import Tensor

from areal_trainer.engine.host_copy import Place, mapped, pin

SLICE_S = 0.05  # between two looks at what no message tells
_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2", "TORCH_NCCL_ENABLE_MONITORING": "0"}  # no watchdog ends the process


class SenderProcess:
    """A sender, by its socket and its pidfd."""

    def __init__(self, talk: socket.socket, pidfd: int) -> None:
        self._talk = talk
        self._pidfd = pidfd
        self._heard = b""

    def tell(self, **order: object) -> None:
        """Begin a work; `hear` its end. Raises RuntimeError when the process is gone."""
        try:
            self._talk.sendall(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise RuntimeError(f"the sender is gone: {error}") from error

    def hear(self, deadline_s: float, check: Callable[[], None]) -> dict[str, Any]:
        """Wait for the end of a work; `check` is called meanwhile and may raise.

        Raises RuntimeError when the work failed, or did not end by the deadline.
        """
        deadline = time.monotonic() + deadline_s
        while b"\n" not in self._heard:
            check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"not done after {deadline_s:.0f} s")
            if select.select([self._talk], [], [], SLICE_S)[0]:
                if not (came := self._talk.recv(1 << 16)):
                    raise RuntimeError("the sender ended")
                self._heard += came
        line, _, self._heard = self._heard.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise RuntimeError(told["error"])
        return told

    def kill(self) -> None:
        """End it at once, whatever it does; who hears of it gets RuntimeError."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """After `kill`, on the thread that hears."""
        self._talk.close()
        os.close(self._pidfd)


class SenderServer:
    """The fork server, which is started when it isn't there. Its process ends with the thread that calls `keep`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = threading.Lock()

    def keep(self) -> None:
        """Start it if it isn't there."""
        if self._process is not None and self._process.poll() is None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "areal_trainer.publish.sender", str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL, env={**os.environ, **_NCCL}, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self._control = ours

    def fork(self, device: str, deadline_s: float) -> SenderProcess:
        """A new sender on `device`. Raises RuntimeError when there is none by the deadline."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            assert self._control is not None
            try:
                self._control.settimeout(deadline_s)
                socket.send_fds(self._control, [device.encode()], [theirs.fileno()])
                _, pidfds, _, _ = socket.recv_fds(self._control, 1, 1)
            except OSError as error:
                raise RuntimeError(f"no sender was forked: {error}") from error
        if not pidfds:
            raise RuntimeError("no sender was forked: the fork server ended")
        return SenderProcess(ours, pidfds[0])

    def close(self) -> None:
        """End it, and all senders with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class _Sender:
    """What the process does, an order at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory: dict[tuple[int, int], Tensor] = {}  # of the trainer's ranks, by process and descriptor
        self._buckets: Sequence[Sequence[Place]] = []
        self._store = rendezvous_server(600.0)
        self._group: ProcessGroup | None = None
        self._next = torch.empty(0, dtype=torch.uint8)

    def begin(self) -> dict[str, Any]:
        return {"port": self._store.port}

    def join(self, backend: str, name: str, world_size: int, timeout_s: float) -> dict[str, Any]:
        """Wait until the engine's ranks are there."""
        place = ("127.0.0.1", self._store.port)
        self._group = join_group(backend, *place, name=name, rank=0, world_size=world_size, timeout_s=timeout_s)
        return {}

    def prepare(self, buckets: Sequence[Sequence[Place]]) -> dict[str, Any]:
        """Build the first bucket of a version: what follows needs no memory that isn't there."""
        self._buckets = buckets
        for bucket in buckets:
            for process, descriptor, _, _ in bucket:
                self._map(process, descriptor)
        self._next = self._built(0)
        return {}

    def send(self, number: int) -> dict[str, Any]:
        """Send a bucket, and build the next one meanwhile."""
        assert self._group is not None
        flat = self._next
        work = self._group.broadcast(flat)
        if number + 1 < len(self._buckets):
            self._next = self._built(number + 1)
        work.wait()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return {}

    def _built(self, number: int) -> Tensor:
        """The bucket's bytes, on the device."""
        bucket = self._buckets[number]
        flat = torch.empty(sum(length for _, _, _, length in bucket), dtype=torch.uint8, device=self._device)
        end = 0
        for process, descriptor, start, length in bucket:
            source = self._memory[process, descriptor][start : start + length]
            flat[end : end + length].copy_(source, non_blocking=True)
            end += length
        return flat

    def _map(self, process: int, descriptor: int) -> None:
        """Map a rank's memory, once: /proc has it as long as that rank lives."""
        if (process, descriptor) in self._memory:
            return
        file = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
        try:
            memory = self._memory[process, descriptor] = mapped(file)
        finally:
            os.close(file)
        if self._device.type == "cuda":
            with suppress(InfraError):  # unpinned it is slower
                pin(memory, "a sender")


def _work(talk: socket.socket, device: str) -> None:
    """Do what lines say, and answer each, until the trainer closes."""
    torch.set_num_threads(1)
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)
    sender = _Sender(torch.device(device))
    works: dict[str, Callable[..., dict[str, Any]]] = {
        "begin": sender.begin, "join": sender.join, "prepare": sender.prepare, "send": sender.send,
    }  # fmt: skip
    for line in talk.makefile("r"):
        (word, arguments), *_ = json.loads(line).items()
        try:
            answer = works[word](**arguments)
        except (OSError, RuntimeError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        talk.sendall(json.dumps(answer).encode() + b"\n")


def main(parent: int, descriptor: int) -> None:
    """Fork a sender for each message, whose descriptor it talks by; answer with its pidfd."""
    die_with(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    control, own = socket.socket(fileno=descriptor), os.getpid()
    while True:
        device, talks, _, _ = socket.recv_fds(control, 64, 1)
        if not device:
            return
        if not (child := os.fork()):
            control.close()
            die_with(own)
            try:
                _work(socket.socket(fileno=talks[0]), device.decode())
            finally:
                os._exit(1)
        os.close(talks[0])
        pidfd = os.pidfd_open(child)
        socket.send_fds(control, [b"."], [pidfd])
        os.close(pidfd)


# ---- Membership of the weight groups: a gRPC service on which servers tell their state and hear their orders


_REPEAT_S = 0.5  # orders are said again: a silent trainer hangs
JOIN = "join"  # the first phase


@dataclass(eq=False)
class _Stream:
    """One server's connection."""

    news: asyncio.Event = field(default_factory=asyncio.Event)
    server: str = ""


@dataclass(frozen=True)
class _ServerSaid:
    stream: _Stream
    state: wire.MemberState
    at: float  # of the clock


class MemberFault(InfraError):
    """A phase of a group failed. `phase` is one of a few words, for metrics; `late`: its deadline passed, no more."""

    def __init__(self, phase: str, message: str, *, late: bool = False) -> None:
        super().__init__(message, fix="this server reads this version from the volume; the next one has a new group")
        self.phase = phase
        self.late = late


class Members(rpc.WeightGroupServicer):
    """The servers that are connected now."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._changed = threading.Condition()
        self._states: dict[str, _ServerSaid] = {}
        self._orders: dict[str, wire.GroupOrders] = {}

    async def Join(
        self, request_iterator: AsyncIterator[wire.MemberState], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[wire.GroupOrders]:
        """One server's stream."""
        stream = _Stream()
        reader = asyncio.create_task(self._read(request_iterator, stream), name="member")
        try:
            await stream.news.wait()  # it says who it is
            while not reader.done():
                stream.news.clear()
                yield self._orders.get(stream.server, wire.GroupOrders())
                with suppress(TimeoutError):
                    async with asyncio.timeout(_REPEAT_S):
                        await stream.news.wait()
        finally:
            reader.cancel()

    async def _read(self, states: AsyncIterator[wire.MemberState], stream: _Stream) -> None:
        try:
            with suppress(grpc.RpcError):
                async for state in states:
                    if not stream.server:
                        stream.server = state.server_id
                        stream.news.set()
                    with self._changed:
                        self._states[stream.server] = _ServerSaid(stream, state, self._clock())
                        self._changed.notify_all()
        finally:
            with self._changed:
                if (said := self._states.get(stream.server)) is not None and said.stream is stream:
                    del self._states[stream.server]
                self._changed.notify_all()
            stream.news.set()

    # ---- of the trainer's threads

    def order(self, server: str, orders: wire.GroupOrders) -> None:
        """Order that a server is told from now on."""

        def tell() -> None:
            self._orders[server] = orders
            if server in self._states:
                self._states[server].stream.news.set()

        self._loop.call_soon_threadsafe(tell)

    def able(self) -> dict[str, wire.MemberState]:
        """Servers that take weights now, by name in order. One that is silent doesn't."""
        now = self._clock()
        with self._changed:
            states = {s: said.state for s, said in self._states.items() if now - said.at < SILENCE_S}
        return {server: state for server, state in sorted(states.items()) if state.able}

    def check(self, group: str, server: str, phase: str) -> None:
        """Raise MemberFault when a server is gone or can't go on with its group."""
        with self._changed:
            self._check(group, server, phase)

    def wait(
        self, phase: str, group: str, server: str, holds: Callable[[wire.MemberState], bool], deadline_s: float
    ) -> None:
        """Wait until `holds` of a server. Raises MemberFault: it failed, or it doesn't hold by the deadline."""
        deadline = time.monotonic() + deadline_s
        with self._changed:
            while True:
                if holds(self._check(group, server, phase)):
                    return
                left = deadline - time.monotonic()
                if left <= 0:
                    words = f"phase {phase} of group {group}: {server} not there after {deadline_s:.0f} s"
                    raise MemberFault(phase, words, late=True)
                self._changed.wait(left)

    def _check(self, group: str, server: str, phase: str) -> wire.MemberState:
        if (said := self._states.get(server)) is None:
            raise MemberFault(phase, f"phase {phase} of group {group}: {server} is gone")
        state = said.state
        if state.failed == group:
            raise MemberFault(phase, f"phase {phase} of group {group}: {server} failed: {state.reason}")
        if not state.able or (phase != JOIN and state.joined != group):
            raise MemberFault(phase, f"phase {phase} of group {group}: {server} has left it")
        return state


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
