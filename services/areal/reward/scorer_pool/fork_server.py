"""Fork server, the service's side: forks scorers from a process that has imported all they need, in milliseconds.

Owns that process and its reports of its forks. When it dies its forks die with it, and the next start makes another.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
from typing import Any

import orjson

from areal.errors import DataError, InfraError
from areal.reward.scorer_pool import frames as shared
from areal.reward.scorer_pool.fork_server_main import PACKET_BYTES
from areal.reward.scorer_pool.process import Child, ScorerCommand, join

log = logging.getLogger(__name__)

_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
_END_S = 5.0  # for a process whose link was closed


class _Fork:
    """A forked process, known by its number."""

    def __init__(self, forker: _Forker, number: int, pid: int) -> None:
        self.pid = pid
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._forker = forker
        self._number = number

    @property
    def ended(self) -> bool:
        return self.code.done()

    async def wait(self) -> int:
        return await asyncio.shield(self.code)

    def kill(self) -> None:
        if not self.ended:
            self._forker.say({"kill": self._number})


class _Forker:
    """The service's end of one `areal.reward.scorer_pool.fork_server_main`."""

    def __init__(self, process: asyncio.subprocess.Process, link: socket.socket) -> None:
        self._process = process
        self._link = link
        self._forks: dict[int, _Fork] = {}
        self._forking: dict[int, asyncio.Future[_Fork]] = {}
        self._numbers = itertools.count()
        self.hello: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.alive = True
        asyncio.get_running_loop().add_reader(link, self._hear)

    def say(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Never waits: the other end always reads, and the messages are small and few."""
        with contextlib.suppress(OSError):  # it is gone: `_hear` says so
            socket.send_fds(self._link, [orjson.dumps(message)], descriptors or [])

    async def fork(self, command: ScorerCommand, descriptors: list[int]) -> _Fork:
        number = next(self._numbers)
        asked = asyncio.get_running_loop().create_future()
        self._forking[number] = asked
        request = {"fork": number, "memory_bytes": command.memory_bytes, "confined": command.confined}
        self.say(request, descriptors)
        if not self.alive:
            self._lost()
        made: _Fork = await asked
        return made

    def _hear(self) -> None:
        try:
            packet = self._link.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._lost()
            return
        said = orjson.loads(packet)
        if "forked" in said:
            fork = _Fork(self, said["forked"], said["pid"])
            self._forks[said["forked"]] = fork
            asked = self._forking.pop(said["forked"])
            if asked.done():  # who asked went away
                fork.kill()
            else:
                asked.set_result(fork)
        elif "ended" in said:
            self._forks.pop(said["ended"]).code.set_result(said["code"])
        elif not self.hello.done():
            self.hello.set_result(said)

    def _lost(self) -> None:
        self.alive = False
        asyncio.get_running_loop().remove_reader(self._link)
        for fork in self._forks.values():
            fork.code.set_result(-signal.SIGKILL)
        self._forks.clear()
        for asked in self._forking.values():
            if not asked.done():
                asked.set_exception(InfraError("the process that forks scorers died", fix="it is started again"))
        self._forking.clear()
        if not self.hello.done():
            self.hello.set_result({})

    async def close(self) -> None:
        """Ends it, and with it every fork."""
        if self.alive:
            self._lost()
        self._link.close()
        try:
            await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


class ForkServer:
    """Starts children of one command by forking them."""

    def __init__(self, command: ScorerCommand) -> None:
        self._command = command
        self._forker: _Forker | None = None
        self._starting = asyncio.Lock()
        self._told = False  # that a layer is missing

    async def start_child(self, timeout_s: float) -> Child:
        """A ready child. Raises DataError when none can ever work, InfraError when it died or wasn't ready in time."""
        ours, theirs = socket.socketpair()
        descriptor = shared.create()
        try:
            async with asyncio.timeout(timeout_s):
                forker = await self._ready()
                fork = await forker.fork(self._command, [theirs.fileno(), descriptor])
                area = shared.ProgressArea(descriptor)
        except TimeoutError:
            ours.close()
            raise InfraError(f"no {self._command.name} scorer was forked within {timeout_s:g} s") from None
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(descriptor)
        child = await join(self._command, fork, ours, area, timeout_s)
        if child.lacking and not self._told:
            self._told = True
            lacking = ", ".join(child.lacking)
            log.warning("%s scorers run without %s: this machine refuses or lacks it", self._command.name, lacking)
        return child

    async def stop(self) -> None:
        """Ends the forker and every child."""
        async with self._starting:
            if self._forker is not None:
                await self._forker.close()
                self._forker = None

    async def _ready(self) -> _Forker:
        async with self._starting:
            if self._forker is not None and not self._forker.alive:
                await self._forker.close()
                self._forker = None
            if self._forker is None:
                self._forker = await self._start()
            return self._forker

    async def _start(self) -> _Forker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [
            sys.executable, "-m", "areal.reward.scorer_pool.fork_server_main",
            self._command.scorer, *self._command.arguments,
            "--link", str(theirs.fileno()), "--parent", str(os.getpid()),
        ]  # fmt: skip
        # What the interpreter needs to find itself; a confined one learns nothing else of the service.
        kept = _KEPT_VARIABLES if self._command.confined else os.environ
        env = {name: value for name, value in os.environ.items() if name in kept}
        env |= {"OMP_NUM_THREADS": "1", **self._command.environment}
        quiet, ends = asyncio.subprocess.DEVNULL, (theirs.fileno(),)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=quiet, pass_fds=ends, start_new_session=True, env=env
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        forker = _Forker(process, ours)
        try:
            hello = await forker.hello
        except BaseException:
            process.kill()
            await forker.close()
            raise
        if hello.get("ready"):
            return forker
        await forker.close()
        if "failed" in hello:
            raise DataError(str(hello["failed"]), fix=str(hello.get("fix", "")))
        raise InfraError(f"the process that forks {self._command.name} scorers died at its start",
                         fix="its log lines say why")  # fmt: skip
