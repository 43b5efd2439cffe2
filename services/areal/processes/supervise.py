"""Supervisor of one child: starts, probes and restarts it as `core.ChildCore` decides.

Owns the child's process family, its log file, its probes and one task that feeds all events to the core in order.
Promises that `run` returns only when nothing of the child is left, however it is ended.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from areal.errors import BugError, InfraError
from areal.net import channel, listening
from areal.plan import RoleRow
from areal.processes import logfile
from areal.processes.core import (
    TERMINAL,
    Action,
    BudgetPolicy,
    ChildCore,
    ChildPhase,
    LifePolicy,
    ProbeAnswer,
    RestartBy,
    RestartGrant,
    RestartsExhausted,
)
from areal.processes.exits import ERROR_FILE, ProcessExit, read_error
from areal.processes.family import Command, Family, WarmStandby
from areal.processes.logfile import Mirror

# ---- Liveness and readiness probes of a child: gRPC health, a TCP connection, or none


class ProbeKind(StrEnum):
    """How readiness is asked."""

    GRPC = "grpc"
    TCP = "tcp"
    NONE = "none"


@dataclass(frozen=True)
class Probe:
    """One way to ask. A `none` probe takes a started process for ready."""

    kind: ProbeKind = ProbeKind.NONE
    port: int = 0
    host: str = "127.0.0.1"
    timeout_s: float = 2.0


class Prober:
    """Asks again and again; keeps one connection."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._channel: grpc.aio.Channel | None = None

    async def ask(self) -> ProbeAnswer:
        """One answer, within the probe's timeout."""
        if self._probe.kind is ProbeKind.GRPC:
            return await self._health()
        return await self._connection() if self._probe.kind is ProbeKind.TCP else ProbeAnswer.READY

    async def close(self) -> None:
        """Drop the connection."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def _health(self) -> ProbeAnswer:
        if self._channel is None:
            address = f"{self._probe.host}:{self._probe.port}"
            options = [
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 300),  # a role is ready the moment it says so
                ("grpc.use_local_subchannel_pool", 1),
            ]
            self._channel = channel.connect(address, None, options=options)
        stub = health_pb2_grpc.HealthStub(self._channel)
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=self._probe.timeout_s)
        except grpc.aio.AioRpcError:
            return ProbeAnswer.SILENT
        return ProbeAnswer.READY if reply.status == health_pb2.HealthCheckResponse.SERVING else ProbeAnswer.LIVE

    async def _connection(self) -> ProbeAnswer:
        try:
            async with asyncio.timeout(self._probe.timeout_s):
                _, writer = await asyncio.open_connection(self._probe.host, self._probe.port)
        except (OSError, TimeoutError):
            return ProbeAnswer.SILENT
        writer.close()
        return ProbeAnswer.READY


# ---- Supervisor of one child: starts, probes and restarts it as `core.ChildCore` decides


log = logging.getLogger(__name__)

_ASK_STARTING_S = 0.1  # readiness decides how fast a run starts
_ASK_RUNNING_S = 2.0
_STANDBY_AFTER_S = 5.0  # of a ready child: two processes that import at once are later than one after the other
_STANDBY_ROOM = 2  # times the child's own memory must be free: a standby must not be what ends it
_TAIL_FOR_REPORT = 200  # lines that may hold torchrun's report


@dataclass(frozen=True)
class ChildSpec:
    """What to run, how to ask it, how to treat it, where its log goes."""

    command: Command
    log: Path
    probe: Probe = field(default_factory=Probe)
    policy: LifePolicy = field(default_factory=LifePolicy)
    mirror: int | None = None  # a descriptor that gets a copy of the log
    listens: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # held for it over its restarts, by purpose
    standby: bool = False  # keep a second process that has done its imports, which takes over when this one dies

    @property
    def name(self) -> str:
        return self.command.name


@dataclass(frozen=True)
class ChildStatus:
    """A child as others see it."""

    name: str
    phase: ChildPhase
    pid: int
    restarts: int
    epoch: int
    last_exit: ProcessExit | None
    reason: str
    since: float  # monotonic
    awaits_epoch: bool
    warning: str = ""  # half of its restarts are used


@dataclass(frozen=True)
class _OutsideActions:
    """Actions decided outside the loop, for the start that was running then."""

    start: int
    actions: list[Action]


_Event: TypeAlias = int | ProbeAnswer | _OutsideActions  # a number is the exit code of the child


class ChildSupervisor:
    """One child. `run` is its life; `drain`, `kill` and `restart` may be called at any time from the same loop."""

    def __init__(
        self, spec: ChildSpec, *, living: set[int] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.spec = spec
        self._core = ChildCore(spec.policy)
        self._clock = clock
        self._living: set[int] = set() if living is None else living
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._family: Family | None = None
        self._standby: WarmStandby | None = None
        self._mirror: Mirror | None = None
        self._watchers: list[asyncio.Task[None]] = []
        self._sockets: dict[str, socket.socket] = {}
        self._error = -1  # a file in memory for the child's last error: a full disk can't hold it
        self._changed = asyncio.Event()
        self.on_change: Callable[[], None] = lambda: None

    @property
    def status(self) -> ChildStatus:
        """Status of the child now."""
        core = self._core
        return ChildStatus(
            name=self.spec.name,
            phase=core.phase,
            pid=self._family.pid if self._family else 0,
            restarts=core.restarts,
            epoch=core.epoch,
            last_exit=core.last_exit,
            reason=core.reason,
            since=core.since,
            awaits_epoch=core.awaits_epoch,
            warning=core.warning(self._clock()),
        )

    async def changed(self) -> None:
        """Wait for the next change of status."""
        await self._changed.wait()

    async def run(self) -> ChildStatus:
        """Start the child and supervise it until it is complete, failed or stopped.

        May be called again after the end, when a new epoch starts the child once more.
        """
        try:
            if self._core.phase is ChildPhase.IDLE:
                await self._act(self._core.start(self._clock()))
            while not (self._core.phase in TERMINAL and self._family is None):
                await self._act(await self._next())
        finally:
            for watcher in self._watchers:
                watcher.cancel()
            if self._family is not None:
                await asyncio.shield(self._family.end())
                self._family = None
            if self._standby is not None:
                await asyncio.shield(self._standby.end())
                self._standby = None
            while self._sockets:
                self._sockets.popitem()[1].close()
            if self._error >= 0:
                os.close(self._error)
                self._error = -1
        self._notify()
        return self.status

    def drain(self, grace_s: float | None = None) -> None:
        """Ask it to stop; kill it after `grace_s` (default: its policy's)."""
        self._tell(self._core.drain(grace_s, self._clock()))

    def kill(self) -> None:
        """End it now."""
        self._tell(self._core.kill(self._clock()))

    def restart(self, epoch: int) -> bool:
        """Be running in `epoch`; False when that is an older one or the child is stopped for good."""
        accepted, actions = self._core.restart(epoch, self._clock())
        self._tell(actions)
        return accepted

    def ask_restart(self) -> RestartGrant | RestartsExhausted:
        """Ask its budget for a restart after its last exit: what restarts a gang must ask."""
        if (exit_ := self._core.last_exit) is None:
            raise BugError(f"{self.spec.name} has not ended yet")
        return self._core.ask_restart(exit_, self._clock())

    async def _next(self) -> list[Action]:
        """The actions that follow from the next event, or from time passing."""
        wake = self._core.wake_at
        try:
            async with asyncio.timeout(None if wake is None else max(0.0, wake - self._clock())):
                event = await self._events.get()
        except TimeoutError:
            return self._core.tick(self._clock())
        if isinstance(event, int):
            for watcher in self._watchers:
                watcher.cancel()
            self._watchers.clear()
            self._family = None
            if self._mirror is not None:
                await asyncio.to_thread(self._mirror.finish)
            tail = logfile.tail(self.spec.log, _TAIL_FOR_REPORT)
            return self._core.exited(event, tail, self._clock(), read_error(self._error_file()))
        if isinstance(event, ProbeAnswer):
            return self._core.probed(event, self._clock())
        stale = event.start != self._core.starts  # the child it meant is gone
        return [action for action in event.actions if not stale or action is Action.START]

    async def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if action is Action.START:
                self._start()
            elif self._family is not None and action is Action.TERMINATE:
                self._family.terminate()
            elif self._family is not None and action is Action.KILL:
                self._family.kill()
        self._notify()

    def _start(self) -> None:
        core = self._core
        header = f"start {core.starts} of {self.spec.name}"
        header += f" in epoch {core.epoch}" if core.epoch else ""
        header += f", after: {core.last_exit.reason}" if core.last_exit else ""
        output = self._output(header)
        command = self.spec.command
        self._listen()
        env = {"AREAL_EPOCH": str(core.epoch), "AREAL_START": str(core.starts), ERROR_FILE: str(self._error_file())}
        env |= listening.variables(self._sockets)
        os.ftruncate(self._error, 0)
        if core.last_exit is not None:
            env["AREAL_LAST_EXIT"] = str(core.last_exit.code)
        descriptors = tuple(held.fileno() for held in self._sockets.values())
        order = Command(command.name, command.argv, {**command.env, **env}, command.cwd, descriptors)
        standby, self._standby = self._standby, None
        try:
            begun = standby.begin(env, output) if standby is not None else None
            self._family = begun or Family.start(order, output, self._living)
        finally:
            os.close(output)
        self._watchers = [
            asyncio.create_task(self._watch_exit(self._family)),
            asyncio.create_task(self._watch_health()),
        ]
        if standby is not None and begun is None:  # it had died, and its keeper is still to be collected
            self._watchers.append(asyncio.create_task(standby.end()))
        if self.spec.standby:
            self._watchers.append(asyncio.create_task(self._stand_by(order, self._family)))

    async def _stand_by(self, order: Command, live: Family) -> None:
        """Start a standby of `live` once that has been ready for a while, if the machine has room for both."""
        while self._core.phase is not ChildPhase.READY:
            await self.changed()
        await asyncio.sleep(_STANDBY_AFTER_S)
        with contextlib.suppress(psutil.NoSuchProcess):
            used = psutil.Process(live.pid).memory_info().rss if live.pid else 0
            free = psutil.virtual_memory().available
            if free < _STANDBY_ROOM * used:
                log.warning("%s has no standby: %d MiB are free, it uses %d", self.spec.name, free >> 20, used >> 20)
                return
            self._standby = WarmStandby(order, self._living)

    def _error_file(self) -> Path:
        """Where the child leaves its error, under a name that its own children know as well."""
        if self._error < 0:
            self._error = os.memfd_create(f"error of {self.spec.name}", os.MFD_CLOEXEC)
        return Path(f"/proc/{os.getpid()}/fd/{self._error}")

    def _listen(self) -> None:
        """Hold what the child listens on; a port that can't be had is the child's own to report."""
        for purpose, (host, port) in self.spec.listens.items():
            if purpose in self._sockets:
                continue
            try:
                self._sockets[purpose] = listening.listen(host, port)
            except InfraError as error:
                log.warning("%s: %s", self.spec.name, error)

    def _output(self, header: str) -> int:
        """The descriptor that the child writes to; ours to close once it has it."""
        output = logfile.open_with_header(self.spec.log, header)
        if self.spec.mirror is None:
            return output
        self._mirror = Mirror(self.spec.log, output, os.dup(self.spec.mirror))
        return self._mirror.write_end

    async def _watch_exit(self, family: Family) -> None:
        self._events.put_nowait(await family.wait())

    async def _watch_health(self) -> None:
        prober = Prober(self.spec.probe)
        try:
            while True:
                self._events.put_nowait(await prober.ask())
                await asyncio.sleep(_ASK_RUNNING_S if self._core.phase is ChildPhase.READY else _ASK_STARTING_S)
        finally:
            await prober.close()

    def _tell(self, actions: list[Action]) -> None:
        self._events.put_nowait(_OutsideActions(self._core.starts, actions))
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self.on_change()


def child_of(
    row: RoleRow, logs: Path, cwd: Path, *, env: Mapping[str, str] | None = None, mirror: int | None = None
) -> ChildSpec:
    """The child that `row` asks for, with its log in `logs`.

    `env` is its whole environment, ours with the row's on top unless given; `mirror` a descriptor that gets its output
    as well.
    """
    policy = LifePolicy(
        restart=RestartBy(row.restart),
        first_start=RestartBy.EPOCH if row.first_start == "epoch" else RestartBy.ITSELF,
        start_deadline_s=row.start_deadline_s,
        drain_s=row.drain_s,
        budget=BudgetPolicy(max_restarts=row.max_restarts),
    )
    return ChildSpec(
        command=Command(row.name, row.command, {**os.environ, **row.env} if env is None else env, cwd),
        log=logs / f"{row.name}.log",
        probe=_probe(row),
        policy=policy,
        mirror=mirror,
        listens={purpose: (row.bind, row.ports[purpose]) for purpose in row.held},
        standby=row.standby,
    )


def _probe(row: RoleRow) -> Probe:
    if (kind := ProbeKind(row.ready)) is ProbeKind.NONE:
        return Probe()
    port = row.ports.get("grpc") or row.ports.get("main") or next(iter(row.ports.values()))
    return Probe(kind, port, row.probe_host)
