"""The service's end of a zygote: start it, hand it runs, hear what became of them, see it die.

Owns the process, the line to it and its cgroups. A run in flight when the zygote dies ends with InfraError.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from areal.errors import InfraError

from areal_judge.sandbox.cell import messages
from areal_judge.sandbox.cell.means import Means
from areal_judge.sandbox.host.delegation import Delegation, make_parent, remove_parent
from areal_judge.sandbox.kernel.cgroups import Groups
from areal_judge.sandbox.values import Layers

log = logging.getLogger(__name__)

_START_S = 60.0
_STOP_S = 5.0
_ENVIRONMENT = {
    "LD_BIND_NOW": "1",  # what is found at the start needn't be found in each fork
    "OPENBLAS_NUM_THREADS": "1",  # a process of several threads enters no user namespace, and forks without them
    "OMP_NUM_THREADS": "1",
}
_SERVICES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from areal_judge.sandbox.cell.zygote import main; sys.path.remove(sys.argv[1]); main(int(sys.argv[2]))"
)


@dataclass(frozen=True)
class ZygoteConfig:
    """What a zygote is told at its start."""

    namespaces: bool
    drivers: tuple[str, ...]
    preload: tuple[str, ...]
    import_paths: tuple[str, ...]  # beside the standard library, while it starts
    hidden_paths: tuple[str, ...]  # of these, those that its cells don't see
    readable: tuple[str, ...]
    first_uid: int
    spares: int
    layers: Layers
    delegation: Delegation
    label: str


@dataclass
class ZygoteRun:
    """A run that a zygote has."""

    ended: asyncio.Future[dict[str, Any]]
    went: Callable[[], None] | None = None


@dataclass(eq=False)
class Zygote:
    """A running zygote. Make one with `start_zygote`."""

    config: ZygoteConfig
    process: asyncio.subprocess.Process
    link: socket.socket
    groups: tuple[str, ...]
    errors: int
    on_end: "Callable[[Zygote], None]"
    means: Means = field(default_factory=Means)
    address_space: int = 0
    tasks: int = 0
    started: float = field(default_factory=time.monotonic)
    first_rss: int = 0
    rss: int = 0
    runs: int = 0
    retiring: bool = False
    dead: bool = False
    last_trouble: str = ""
    flights: dict[int, ZygoteRun] = field(default_factory=dict)
    _outbox: deque[tuple[dict[str, Any], list[int]]] = field(default_factory=deque)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    def listen(self) -> None:
        self.link.setblocking(False)
        asyncio.get_running_loop().add_reader(self.link, self._readable)

    @property
    def load(self) -> int:
        return len(self.flights)

    def _readable(self) -> None:
        while not self.dead:
            try:
                message, _ = messages.receive(self.link)
            except BlockingIOError:
                return
            except (OSError, ValueError):
                message = None
            if message is None:
                self._lost()
                return
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "ended":
            flight = self.flights.pop(message["id"], None)
            self.runs += 1
            self.rss = message.get("zygote_rss", self.rss)
            if flight is not None and not flight.ended.done():
                flight.ended.set_result(message)
        elif event == "went":
            flight = self.flights.get(message["id"])
            if flight is not None and flight.went is not None:
                flight.went()
        elif event == "ready":
            self.means = Means(**message["means"])
            self.address_space, self.tasks = message["address_space"], message["tasks"]
            self.first_rss = self.rss = message["rss"]
            self._ready.set()
        else:
            self.last_trouble = message["message"]

    async def ready(self) -> None:
        """Raises InfraError when it dies or takes too long at its start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                await self._ready.wait()
        if not self._ready.is_set() or self.dead:
            trouble = self.last_trouble or self._last_words() or "it said nothing"
            await self.stop()
            raise InfraError(f"a sandbox zygote did not start: {trouble}", fix="see docs/reward.md on tiers")
        if os.geteuid() == 0 and self.config.layers.user and not (self.means.own_user or self.means.user_namespace):
            log.warning(
                "runs keep root's uid, without its capabilities: other users can't reach this interpreter; "
                "install it where everybody may read it"
            )

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            return os.pread(self.errors, 8192, 0).decode(errors="replace").strip()[-2000:]
        return ""

    def submit(self, run: dict[str, Any], descriptors: Sequence[int], went: Callable[[], None] | None) -> ZygoteRun:
        """Hands over a run; its descriptors are the zygote's from here on."""
        flight = ZygoteRun(asyncio.get_running_loop().create_future(), went)
        if self.dead:
            for descriptor in descriptors:
                os.close(descriptor)
            flight.ended.set_exception(self._loss())
            return flight
        self.flights[run["id"]] = flight
        self._send(run, list(descriptors))
        return flight

    def kill(self, run: int, reason: str) -> None:
        if run in self.flights and not self.dead:
            self._send({"op": "kill", "id": run, "reason": reason}, [])

    def _send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        self._outbox.append((message, descriptors))
        if len(self._outbox) == 1:
            self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._outbox:
            message, descriptors = self._outbox[0]
            try:
                messages.send(self.link, message, descriptors)
            except BlockingIOError:
                loop.add_writer(self.link, self._flush)
                return
            except OSError:
                self._lost()
                return
            self._outbox.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
        loop.remove_writer(self.link)

    def _loss(self) -> InfraError:
        return InfraError(f"a sandbox zygote was lost {self.last_trouble}".strip(), fix="try again")

    def _lost(self) -> None:
        if self.dead:
            return
        self.dead = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.link)
        loop.remove_writer(self.link)
        self.link.close()
        for _, descriptors in self._outbox:
            for descriptor in descriptors:
                os.close(descriptor)
        self._outbox.clear()
        for flight in self.flights.values():
            if not flight.ended.done():
                flight.ended.set_exception(self._loss())
        self.flights.clear()
        self._ready.set()
        self.on_end(self)

    async def stop(self) -> None:
        """Ends it and everything below it; returns when it is gone."""
        self._lost()
        try:
            await asyncio.wait_for(self.process.wait(), _STOP_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            await self.process.wait()
        if self.errors >= 0:
            os.close(self.errors)
            self.errors = -1
        # Its cells end with it, but a moment later: their groups tell when.
        until = time.monotonic() + _STOP_S
        while not remove_parent(self.groups) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def start_zygote(config: ZygoteConfig, on_end: Callable[[Zygote], None]) -> Zygote:
    """Starts a zygote and waits until it can take runs. Raises InfraError with its last words."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    errors = os.memfd_create("zygote-errors", os.MFD_CLOEXEC)
    groups = make_parent(config.delegation, config.label) if config.delegation.version else ()
    python = getattr(sys, "_base_executable", sys.executable)
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-I", "-S", "-X", "utf8", "-c", _BOOT, _SERVICES, str(theirs.fileno()),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=errors,
            pass_fds=(theirs.fileno(),), cwd="/", env=_ENVIRONMENT if config.layers.environment else None,
        )  # fmt: skip
    except BaseException:
        ours.close()
        os.close(errors)
        remove_parent(groups)
        raise
    finally:
        theirs.close()
    zygote = Zygote(config, process, ours, groups, errors, on_end)
    opened = Groups.opened(config.delegation.version, groups)
    told = {
        "parent": os.getpid(), "namespaces": config.namespaces, "layers": asdict(config.layers),
        "drivers": list(config.drivers), "preload": list(config.preload), "readable": list(config.readable),
        "import_paths": [_SERVICES, *config.import_paths], "hidden_paths": [_SERVICES, *config.hidden_paths],
        "groups": config.delegation.version, "first_uid": config.first_uid, "spares": config.spares,
    }  # fmt: skip
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            messages.send(ours, told, opened.parents)
    finally:
        opened.close()
    zygote.listen()
    try:
        await zygote.ready()
    except asyncio.CancelledError:
        await zygote.stop()
        raise
    return zygote
