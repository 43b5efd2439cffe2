"""The sandbox: runs programs that nobody trusts, each in a cell, and says how each ended.

Owns admission (what this machine's tier can run), the number of runs at once, a run's descriptors, and the way from a
request to `RunEnding`. It never blocks, never touches a path that a run could have made, and never turns a fault of the
machine into a program's: that is an InfraError.
"""

import asyncio
import contextlib
import importlib.util
import itertools
import os
import resource
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from areal.errors import ConfigError, InfraError

from areal_judge.sandbox import values
from areal_judge.sandbox.cell.messages import CellShape
from areal_judge.sandbox.cell.orders import packed, write_order
from areal_judge.sandbox.host import delegation, tiers
from areal_judge.sandbox.host.probing import probe
from areal_judge.sandbox.host.profiles import Profile
from areal_judge.sandbox.host.session import MAX_FRAME_BYTES, CellSession, EndEvidence, close, shut_down, verdict
from areal_judge.sandbox.host.streams import CappedReader, DescriptorPair, RunSlots, input_of, unpack
from areal_judge.sandbox.host.zygotes import Zygote, ZygoteConfig

_GRACE_S = 0.2  # for pipes that something still holds open
_STUCK_S = 10.0  # beyond a run's own deadline: its zygote doesn't answer any more
_SETUP_S = 25.0
_THREADS = 64  # tasks of a run of one process
_TASKS_OF_SHARED_USER = 1024  # above what the user has, where runs share one
_KEEP_OVERHEAD = 1 << 16


@dataclass(frozen=True)
class SandboxConfig:
    """How to build a sandbox."""

    min_tier: values.Tier = values.Tier.T2
    allow_unsafe: bool = False  # T0, for a person's own machine
    highest_tier: values.Tier = values.Tier.T4  # to try how a lower tier behaves
    zygotes: int = field(default_factory=lambda: max(1, min(8, os.cpu_count() or 1)))
    spares: int = 2  # cells made ahead, a zygote
    max_runs: int = 0  # at once; 0 is four a zygote
    drivers: tuple[str, ...] = ()  # modules that zygotes import, for sessions
    driver_paths: tuple[str, ...] = ()  # directories that drivers are imported from beside the service's own
    preload: tuple[str, ...] = ("numpy", "numpy.random")  # what the zygotes of runs with `numpy` import beside
    first_uid: int = 200000
    layers: values.Layers = values.ALL_LAYERS
    readable: tuple[str, ...] = ()


@dataclass
class SandboxCounters:
    """What has happened since the start."""

    runs: int = 0
    running: int = 0
    endings: dict[str, int] = field(default_factory=dict)
    infra_errors: int = 0
    zygote_restarts: int = 0
    spare_misses: int = 0


@dataclass(frozen=True)
class ZygotePlace:
    """A zygote as the operating system knows it: its process, and the groups that its cells' are below."""

    pid: int
    groups: tuple[str, ...]


def _tasks(limits: values.Limits) -> int:
    return max(limits.processes, _THREADS) if limits.processes == 1 else limits.processes


class Sandbox:
    """Runs programs in cells. `start` before use, `stop` after."""

    powers: values.Powers

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self._config = config or SandboxConfig()
        self._counters = SandboxCounters()
        self._numbers = itertools.count(1)
        self._profiles: dict[bool, Profile] = {}
        self._starting = asyncio.Lock()
        self._slots = RunSlots(self._config.max_runs or 4 * self._config.zygotes)
        self._delegation = delegation.NO_DELEGATION

    async def start(self) -> None:
        """Finds out what the machine offers and starts the zygotes.

        Raises:
            ConfigError: the machine's tier is below the configured one.
            InfraError: zygotes don't start.
        """
        config = self._config
        _allow_descriptors()
        self.powers = await asyncio.to_thread(probe, config.highest_tier, config.allow_unsafe)
        if self.powers.tier < config.min_tier:
            message, fix = tiers.why_not(config.min_tier, self.powers)
            raise ConfigError(message, fix=fix)
        if self.powers.base is values.Tier.T0 and not config.allow_unsafe:
            message, fix = tiers.why_not(values.Tier.T2, self.powers)
            raise ConfigError(f"{message}; without a sandbox nothing runs unless that is allowed", fix=fix)
        if self.powers.memory_bound is values.MemoryBound.CGROUP and config.layers.cgroup:
            self._delegation = await asyncio.to_thread(delegation.find)
            delegation.sweep(self._delegation)
        await self._profile(False)

    async def stop(self) -> None:
        """Ends everything that it started; nothing is left."""
        for profile in self._profiles.values():
            await profile.stop()
        self._profiles.clear()

    def counters(self) -> SandboxCounters:
        return self._counters

    @property
    def spares(self) -> int:
        """Cells made ahead, a zygote."""
        return self._config.spares

    def zygotes(self) -> tuple[ZygotePlace, ...]:
        """Where its zygotes are now, those that only end their last runs too."""
        alive = [zygote for profile in self._profiles.values() for zygote in profile.zygotes()]
        return tuple(ZygotePlace(zygote.process.pid, zygote.groups) for zygote in alive)

    async def _profile(self, numpy: bool) -> Profile:
        async with self._starting:
            if numpy not in self._profiles:
                profile = Profile(self._zygote_config(numpy), self._config.zygotes, self._count_restart)
                await profile.start()
                self._profiles[numpy] = profile
            return self._profiles[numpy]

    def _count_restart(self) -> None:
        self._counters.zygote_restarts += 1

    def _zygote_config(self, numpy: bool) -> ZygoteConfig:
        config = self._config
        preload = config.preload if numpy else ()
        packages, readable = [], list(config.readable)
        for name in preload:
            found = importlib.util.find_spec(name.partition(".")[0])
            if found is None or not found.submodule_search_locations:
                raise SandboxRefusalError(f"{name} is not installed", fix=f"pip install {name}")
            place = found.submodule_search_locations[0]
            packages.append(os.path.dirname(place))
            readable += [place, f"{place}.libs"]
        return ZygoteConfig(
            namespaces=self.powers.base >= values.Tier.T3,
            drivers=config.drivers,
            preload=preload,
            import_paths=tuple(dict.fromkeys((*packages, *config.driver_paths))),
            hidden_paths=config.driver_paths,
            readable=tuple(dict.fromkeys(readable)),
            first_uid=config.first_uid,
            spares=config.spares,
            layers=config.layers,
            delegation=self._delegation,
            label="",
        )

    # ---- runs

    async def run(self, run: values.ProgramRun) -> values.RunEnding:
        """Runs a Script or a Command to its end.

        Raises:
            SandboxRefusalError: this tier can't run it. Nothing was run.
            InfraError: the machine failed; nothing is known about the program.
        """
        if isinstance(run.entry, values.Driver):
            raise SandboxRefusalError("a Driver needs someone to talk to", fix="use session()")
        return await self._run(run, None)

    @contextlib.asynccontextmanager
    async def session(
        self, run: values.ProgramRun, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> AsyncIterator[CellSession]:
        """Starts a Driver and gives the line to it, once it runs. On leaving, the run is killed if it isn't over.

        Raises as `run` does.
        """
        async with self._session(run, max_frame_bytes, reserved=False) as session:
            yield session

    @contextlib.asynccontextmanager
    async def pair(self) -> "AsyncIterator[Pair]":
        """Takes the slots of two runs at once, for sessions that need each other."""
        async with self._slots.held(2):
            yield Pair(self)

    @contextlib.asynccontextmanager
    async def _session(
        self, run: values.ProgramRun, max_frame_bytes: int, *, reserved: bool
    ) -> AsyncIterator[CellSession]:
        drivers = self._config.drivers
        if not isinstance(run.entry, values.Driver) or run.entry.module not in drivers:
            name = run.entry.module if isinstance(run.entry, values.Driver) else type(run.entry).__name__
            raise SandboxRefusalError(f"{name} is no driver that cells have: {', '.join(drivers)}", fix="use run()")
        ours, theirs = socket.socketpair()
        went: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        killers: list[Any] = []
        task = asyncio.ensure_future(self._run(run, theirs, went, killers, reserved=reserved))
        try:
            either: list[asyncio.Future[Any]] = [task, went]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not went.done():
                await task  # raises what kept it from starting

            def kill(reason: str) -> None:
                if killers:
                    killers[0](reason)

            yield CellSession(ours, task, kill, max_frame_bytes)
        finally:
            shut_down(ours)
            if not task.done():
                task.cancel()
            try:
                with contextlib.suppress(asyncio.CancelledError, ConfigError, InfraError):
                    await task
            finally:
                close(ours)

    def _bounds(self, run: values.ProgramRun, zygote: Zygote) -> dict[str, int]:
        """What bounds a run's address space, 0 where its memory is counted by a group, and its user's tasks."""
        limits = run.limits
        address_space = 0
        if run.as_memory and not self._delegation.version:
            address_space = limits.memory_bytes
            if not isinstance(run.entry, values.ImageCommand):
                address_space += zygote.address_space
        apart = zygote.means.own_tasks or (zygote.means.own_user and self._config.layers.user)
        # A user's tasks are counted all over the machine, those of another service's runs too: a group counts better.
        bound = _tasks(limits) + 1 if apart and not self._delegation.version else zygote.tasks + _TASKS_OF_SHARED_USER
        return {"address_space": address_space, "tasks": bound}

    @staticmethod
    def _message(number: int, run: values.ProgramRun, tell: bool) -> dict[str, Any]:
        """What the zygote is told of a run."""
        limits = run.limits
        return {
            "op": "run", "id": number, "shape": CellShape.of(run), "wall_s": limits.wall_s, "keep": list(run.keep),
            "keep_bytes": limits.disk_bytes, "tell": tell, "channel": tell, "memory": limits.memory_bytes,
            "tasks": _tasks(limits) + 1,
        }  # fmt: skip

    async def _run(
        self,
        run: values.ProgramRun,
        channel: socket.socket | None,
        went: asyncio.Future[None] | None = None,
        killers: list[Any] | None = None,
        *,
        reserved: bool = False,
    ) -> values.RunEnding:
        asked = time.monotonic()
        theirs: list[int] = [channel.detach()] if channel is not None else []
        try:
            _admit(run, self.powers)
            async with contextlib.nullcontext() if reserved else self._slots.held():
                profile = await self._profile(run.numpy)
                zygote = await profile.pick()
                self._counters.running += 1
                try:
                    return await self._on(zygote, run, theirs, asked, went, killers)
                except InfraError:
                    self._counters.infra_errors += 1
                    raise
                finally:
                    self._counters.running -= 1
                    profile.used(zygote)
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    async def _on(
        self,
        zygote: Zygote,
        run: values.ProgramRun,
        channel: list[int],
        asked: float,
        went: asyncio.Future[None] | None,
        killers: list[Any] | None,
    ) -> values.RunEnding:
        number = next(self._numbers)
        reasons: list[str] = []

        def kill(reason: str) -> None:
            reasons.append(reason)
            zygote.kill(number, reason)

        def started() -> None:
            if went is not None and not went.done():
                went.set_result(None)

        limits = run.limits
        with contextlib.ExitStack() as stack:
            theirs = [write_order(packed(run, **self._bounds(run, zygote))), input_of(run.stdin, stack)]
            stdout, stderr, kept = DescriptorPair(), DescriptorPair(), DescriptorPair() if run.keep else None
            theirs += [stdout.writer, stderr.writer, *channel]
            channel.clear()
            if kept is not None:
                theirs.append(kept.writer)
            output = CappedReader(stdout.reader, limits.output_bytes, on_over=lambda: kill("output"))
            errors = CappedReader(stderr.reader, limits.stderr_bytes, drop=True)
            brought = CappedReader(kept.reader, limits.disk_bytes + _KEEP_OVERHEAD) if kept is not None else None
            for reader in (output, errors, brought):
                if reader is not None:
                    stack.callback(reader.close)
            flight = zygote.submit(self._message(number, run, went is not None), theirs, started)
            if killers is not None:
                killers.append(kill)
            try:
                async with asyncio.timeout(limits.wall_s + _SETUP_S + _STUCK_S):
                    event = await asyncio.shield(flight.ended)  # a cancelled run is waited for
            except TimeoutError:
                await zygote.stop()
                raise InfraError("a sandbox zygote did not answer and was ended", fix="try again") from None
            except asyncio.CancelledError:
                kill("cancel")
                with contextlib.suppress(TimeoutError, InfraError):  # its slot isn't free before it is gone
                    async with asyncio.timeout(_STUCK_S):
                        await asyncio.shield(flight.ended)
                raise
            if event["failure"]:
                raise InfraError(f"the sandbox could not set up a run: {event['failure']}", fix="try again")
            until = asyncio.get_running_loop().time() + _GRACE_S
            out, err = await output.finish(until), await errors.finish(until)
            files = unpack(await brought.finish(until)) if brought is not None else {}
        ended = self._ended(run.limits, event, asked, err, output.over)
        return replace(ended, stdout=out, stderr_truncated=errors.over, files=files)

    def _ended(
        self, limits: values.Limits, event: dict[str, Any], asked: float, err: bytes, over: bool
    ) -> values.RunEnding:
        """How a run ended, by what its zygote tells; `over` where it printed too much."""
        if event.get("lost") and not event["reason"] and not event["oom"]:
            raise InfraError("the first process of a cell was lost", fix="try again")
        began = event["went"] if event["went"] is not None else event["ended"]
        wall_s = max(0.0, event["ended"] - began)
        seen = EndEvidence(
            status=event["status"], reason="output" if over else event["reason"], wall_s=wall_s,
            cpu_s=event["cpu_s"], cpu_all_s=event["cpu_all_s"], rss_bytes=event["rss"], out_of_memory=event["oom"],
            tasks_refused=event["tasks_hit"], disk_full=event["full"], stderr=err,
        )  # fmt: skip
        said = verdict(seen, limits)
        counters = self._counters
        counters.runs += 1
        counters.spare_misses += bool(event["cold"])
        counters.endings[said.ending] = counters.endings.get(said.ending, 0) + 1
        return values.RunEnding(
            ending=said.ending, exit_code=said.exit_code, signal=said.signal, stderr=err, wall_s=wall_s,
            cpu_s=event["cpu_s"], max_rss_bytes=event["rss"], memory_peak_bytes=event["peak"],
            setup_s=max(0.0, began - asked), tier=self.powers.tier,
        )  # fmt: skip


class Pair:
    """Slots for two sessions at the same time. Made by `Sandbox.pair`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def session(
        self, run: values.ProgramRun, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> contextlib.AbstractAsyncContextManager[CellSession]:
        """As `Sandbox.session`, in a slot of the pair."""
        return self._sandbox._session(run, max_frame_bytes, reserved=True)


def _allow_descriptors() -> None:
    """As many open files as this process may have, and its zygotes with it: each cell takes half a dozen."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class SandboxRefusalError(ConfigError):
    """This machine's tier can't run what was asked."""


def _admit(run: values.ProgramRun, powers: values.Powers) -> None:
    """Raises SandboxRefusalError for a run that these powers can't run, or that names files where none may be."""
    needs = []
    if run.limits.processes > 1 and not powers.fork:
        needs.append(f"{run.limits.processes} processes")
    if isinstance(run.entry, values.ImageCommand) and not powers.execute:
        needs.append("to execute programs")
    if (run.files or run.keep) and not powers.scratch:
        needs.append("a scratch directory for its files")
    if needs:
        raise SandboxRefusalError(
            f"the run needs {' and '.join(needs)}; sandbox tier {powers.tier.name} offers none",
            fix="run it where T3 is available: namespaces (root or user namespaces) allowed to the reward service",
        )
    size = sum(len(data) for data in run.files.values())
    if size > run.limits.disk_bytes or len(run.files) > run.limits.inodes:
        raise SandboxRefusalError("the run's files are larger than its disk limit", fix="raise limits.disk_bytes")
    for path in (*run.files, *run.keep):
        if not path or path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
            raise SandboxRefusalError(f"{path!r} is no plain relative path", fix="name files below the scratch")
