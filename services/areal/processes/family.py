"""Handle of one running command and everything it started, under its keeper process.

Owns the keeper process and the socket to it. Closing the socket, on purpose or by dying, ends the whole family. Linux
only: keepers need subreapers, parent-death signals and pidfds.

A keeper that is killed with SIGKILL can't sweep. Its child dies by the kernel's parent-death signal; deeper descendants
become children of the nearest subreaper, which a supervisor is (`adopt`), and which ends them (`sweep`). They are told
apart from the supervisor's own helpers by their session: keepers and all below them live in other sessions.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from areal.errors import InfraError
from areal.processes.keeper import PR_SET_CHILD_SUBREAPER, prctl

_KEEPER = Path(__file__).with_name("keeper.py")
_ABANDONED = 137  # a keeper's exit code when the socket ended: the family was killed
_KEEPER_PATIENCE_S = 12.0  # longer than the keeper's own limit for a sweep
_SERVED, SERVER_SOCKET = "keeper.py", "keeper.sock"  # in a directory that two containers share
_CONNECT_S = 0.2  # between two tries


@dataclass(frozen=True)
class Command:
    """What to run. `env` is the whole environment; `descriptors` are passed on under their numbers."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    cwd: Path = field(default_factory=Path.cwd)
    descriptors: tuple[int, ...] = ()


class Family:
    """A started command. Make it with `Family.start`; `await wait()` answers when nothing of it is left."""

    def __init__(self, keeper: subprocess.Popen[bytes], control: socket.socket, living: set[int] | None) -> None:
        self._keeper = keeper
        self._control: socket.socket | None = control
        self._living = living
        self._said = b""
        if living is not None:
            living.add(keeper.pid)

    @classmethod
    def start(cls, command: Command, output: int, living: set[int] | None = None) -> "Family":
        """Start `command` with standard output and error to the descriptor `output`.

        `living` is the set of keeper pids of a supervisor that adopts orphans; the family keeps its own entry in it.
        """
        ours, theirs = socket.socketpair()
        try:
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_KEEPER), command.name],
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C at the terminal is the supervisor's to handle
                pass_fds=command.descriptors,  # the keeper's child inherits them in turn
            )
        except OSError as error:
            ours.close()
            raise InfraError(f"can't start {command.name}: {error}", fix="free memory or process slots") from error
        finally:
            theirs.close()
        order = {
            "command": list(command.argv), "env": dict(command.env), "cwd": str(command.cwd),
            "descriptors": command.descriptors,
        }  # fmt: skip
        with contextlib.suppress(BrokenPipeError):  # a keeper that died at once: its exit code says so
            ours.sendall(json.dumps(order).encode() + b"\n")
        ours.setblocking(False)
        return cls(keeper, ours, living)

    @property
    def pid(self) -> int:
        """The command's own pid; 0 until the keeper has told it."""
        self._listen()
        for line in self._said.split(b"\n")[:-1]:
            told = json.loads(line)
            if "pid" in told:
                return int(told["pid"])
        return 0

    @property
    def ended(self) -> bool:
        """Whether the keeper has ended, and with it the family."""
        return self._keeper.poll() is not None

    def terminate(self) -> None:
        """Ask the command to stop (SIGTERM, passed on by the keeper)."""
        with contextlib.suppress(ProcessLookupError):
            self._keeper.terminate()

    def kill(self) -> None:
        """End the command and everything it started, at once."""
        self._listen()
        if self._control is not None:
            self._control.close()
            self._control = None

    async def wait(self) -> int:
        """The exit code, once nothing of the family is left (a negative code is a signal)."""
        await _gone(self._keeper)
        code = self._keeper.wait()
        self._listen()
        self.kill()
        told = [json.loads(line) for line in self._said.split(b"\n")[:-1]]
        codes = [int(entry["code"]) for entry in told if "code" in entry]
        if self._living is not None:
            self._living.discard(self._keeper.pid)
        if not codes:  # it was told to kill, or was killed itself: what it could not sweep is ours
            if self._living is not None:
                await asyncio.to_thread(sweep, frozenset(self._living))
            return -signal.SIGKILL if code == _ABANDONED else code
        return codes[-1]

    async def end(self) -> int:
        """Kill, and wait until nothing is left, whatever the keeper does."""
        self.kill()
        try:
            return await asyncio.wait_for(self.wait(), _KEEPER_PATIENCE_S)
        except TimeoutError:
            self._keeper.kill()
            return await self.wait()

    def _listen(self) -> None:
        if self._control is None:
            return
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while data := self._control.recv(4096):
                self._said += data


STANDBY = "AREAL_STANDBY"  # environment variable: descriptor of the socket on which a warm standby is told its start


class WarmStandby:
    """A command started ahead of its time: it imports what it needs, and waits on a socket for its start.

    Takes nothing of the run until then, and ends with its supervisor. What it writes before its start is lost.
    """

    def __init__(self, command: Command, living: set[int] | None = None) -> None:
        self._order, theirs = socket.socketpair()
        with theirs, open(os.devnull, "wb") as nowhere:
            env = {**command.env, STANDBY: str(theirs.fileno())}
            ahead = replace(command, env=env, descriptors=(*command.descriptors, theirs.fileno()))
            self.family = Family.start(ahead, nowhere.fileno(), living)

    def begin(self, env: Mapping[str, str], output: int) -> Family | None:
        """Let it start as any other, with `env` on top of its own and its output to `output`; None if it has ended."""
        with self._order:
            if self.family.ended:
                return None
            try:
                socket.send_fds(self._order, [json.dumps(dict(env)).encode() + b"\n"], [output])
            except OSError:
                return None
        return self.family

    async def end(self) -> None:
        """Kill it; one that began is no standby any more."""
        self._order.close()
        await self.family.end()


class RemoteFamily:
    """A command and everything it started in another container of this pod, under a keeper that is served there.

    Its connection is its life: whoever closes it, everything ends. Only `env`, beside that container's own environment,
    and `argv` count of a command.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._said = b""
        self._reading = asyncio.create_task(self._read(), name="keeper in another container")

    @classmethod
    async def start(cls, command: Command, place: Path, patience_s: float) -> "RemoteFamily":
        """Start `command` by the server in the directory `place`, which is there in `patience_s` or InfraError."""
        deadline = time.monotonic() + patience_s
        while (control := await _connected(place / SERVER_SOCKET)) is None:
            if time.monotonic() > deadline:
                words = f"no container serves {place} after {patience_s:.0f} s, and {command.name} is to run there"
                raise InfraError(words, fix=f"`kubectl describe pod` says what keeps the container {command.name} back")
            await asyncio.sleep(_CONNECT_S)
        order = {"command": list(command.argv), "env": dict(command.env), "cwd": "/", "descriptors": [], "beside": True}
        with contextlib.suppress(OSError):  # its end says so
            await asyncio.get_running_loop().sock_sendall(control, json.dumps(order).encode() + b"\n")
        return cls(control)

    @property
    def pid(self) -> int:
        """The command's pid there; 0 until the keeper has told it."""
        return next((int(told["pid"]) for told in self._told() if "pid" in told), 0)

    @property
    def ended(self) -> bool:
        """Whether the connection has."""
        return self._reading.done()

    def terminate(self) -> None:
        """Ask the command to stop: SIGTERM."""
        with contextlib.suppress(OSError):
            self._control.send(bytes([signal.SIGTERM]))

    def kill(self) -> None:
        """End the command and everything it started, at once."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    async def wait(self) -> int:
        """The exit code, once nothing of the family is left (a negative code is a signal)."""
        await asyncio.shield(self._reading)
        return next((int(told["code"]) for told in self._told() if "code" in told), -signal.SIGKILL)

    async def end(self) -> int:
        """Kill, and wait until nothing is left; of a container that is gone nothing is."""
        self.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KEEPER_PATIENCE_S):
                return await self.wait()
        self._reading.cancel()
        return -signal.SIGKILL

    async def _read(self) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await asyncio.get_running_loop().sock_recv(self._control, 4096):
                    self._said += data
        finally:
            self._control.close()

    def _told(self) -> list[dict[str, int]]:
        return [json.loads(line) for line in self._said.split(b"\n")[:-1]]


async def _connected(place: Path) -> socket.socket | None:
    control = socket.socket(socket.AF_UNIX)
    control.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(control, str(place))
    except OSError:
        control.close()
        return None
    return control


def lend_keeper(place: Path) -> None:
    """Put the keeper into a directory that another container waits for: it runs it as a server."""
    whole = place / f".{_SERVED}"
    shutil.copyfile(_KEEPER, whole)
    whole.rename(place / _SERVED)


async def _gone(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a child process without a thread."""
    if process.poll() is not None:
        return
    descriptor = os.pidfd_open(process.pid)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def adopt() -> None:
    """Make this process the one that orphans below it fall to."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def sweep(keepers: Collection[int], limit_s: float = 5.0) -> int:
    """Kill all children in other sessions that are no keeper, with everything below them; returns how many."""
    own_session = os.getsid(0)
    ended: set[int] = set()
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        strays = [
            child
            for child in psutil.Process().children()
            if child.pid not in keepers and _session(child.pid) not in (own_session, None)
        ]
        if not strays:
            break
        for stray in strays:
            for process in [*_below(stray), stray]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                    ended.add(process.pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stray.pid, 0)
    return len(ended)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
