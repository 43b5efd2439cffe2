"""Client of a boxes service: a box is a context in which commands share a shell, an interpreter and files.

Owns one stream that says this client is there, the leases of its boxes, and asking again while a connection is lost:
commands are numbered, so none runs twice. What a program did to its box is a BoxEndedError; whatever else ended it is
an InfraError, never anybody's score.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import grpc

from areal.errors import DataError, InfraError
from areal.net.channel import connect, raise_if_cancelled
from areal.net.heartbeat import Backoff
from areal.net.status import raise_as
from areal.observe.waits import LostService, WaitRegistry
from areal.v1 import boxes_pb2 as pb
from areal.v1 import boxes_pb2_grpc as rpc
from areal.v1 import sandbox_pb2
from areal.values.boxes import END_KEY, BoxEnd, BoxEndCause, BoxEndedError, BoxLanguage, CommandEnding, CommandResult

log = logging.getLogger(__name__)

SCORING_S = 120.0  # of a lease beyond its work: a box outlives whoever looks at what was left in it
PATIENCE_S = 120.0  # for room
_LOST_S = 15.0  # for a lost connection: less than the grace that the service gives a holder
_EXTRA_S = 90.0  # of a call beyond its command: its turn, and ending what it started
_LEAST_RENEWAL_S = 0.5
T = TypeVar("T")
_LANGUAGES = {BoxLanguage.BASH: pb.BOX_LANGUAGE_BASH, BoxLanguage.PYTHON: pb.BOX_LANGUAGE_PYTHON}


@dataclass(frozen=True)
class BoxLimits:
    """Bounds of a box; 0 takes the service's."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    inodes: int = 0
    processes: int = 0
    open_files: int = 0


class BoxClient:
    """Makes boxes at one service. Lives on one event loop."""

    def __init__(self, address: str, token: str, *, waits: WaitRegistry, holder: str = "") -> None:
        self._address = address
        self._channel = connect(address, token)
        self._stub = rpc.BoxesStub(self._channel)
        self._waits = waits
        self._lost = LostService(waits, "boxes", f"{address} to answer", deadline_s=_LOST_S)
        self.holder = holder or uuid.uuid4().hex
        self._holding: asyncio.Task[None] | None = None
        self._held = asyncio.Event()

    async def close(self) -> None:
        """Lets go of the service: what is still open ends there after a grace."""
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.gather(self._holding, return_exceptions=True)
        await self._channel.close()

    @contextlib.asynccontextmanager
    async def box(
        self,
        *,
        work_s: float,
        scoring_s: float = SCORING_S,
        files: Mapping[str, bytes] | None = None,
        limits: BoxLimits | None = None,
        name: str = "",
        patience_s: float = PATIENCE_S,
    ) -> "AsyncIterator[Box]":
        """A box for work of at most `work_s`, kept for `scoring_s` beyond that; closed at the end of the context.

        `name` adopts the box that was made with it before; `patience_s` bounds the wait for room.

        Raises:
            InfraError: no room in time, or the service is lost.
            BoxEndedError: a box of this name was ended by its program.
        """
        self._hold()
        name = name or uuid.uuid4().hex
        lease_s = work_s + scoring_s
        chosen = limits or BoxLimits()
        request = pb.CreateBoxRequest(
            id=name,
            holder=self.holder,
            lease_ms=round(lease_s * 1000),
            limits=sandbox_pb2.SandboxLimits(**vars(chosen)),
            files=dict(files or {}),
        )
        try:
            with self._waits.waiting("boxes", f"{self._address} to start a box", deadline_s=patience_s):
                state = await self._call(self._stub.CreateBox, request, patience_s)
            made = Box(self, name, state.calls)
            renewing = asyncio.create_task(self._renew(name, lease_s))
            try:
                yield made
            finally:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)
        finally:
            await self._let_go(name)

    async def census(self) -> pb.BoxCensus:
        """Census of the boxes at the service now, counted from its operating system. Raises InfraError."""
        return await self._call(self._stub.CountBoxes, pb.CountBoxesRequest(), _EXTRA_S)

    async def _let_go(self, name: str) -> None:
        with contextlib.suppress(InfraError):  # else its lease ends it
            await asyncio.shield(self._call(self._stub.CloseBox, pb.CloseBoxRequest(id=name), _EXTRA_S))

    async def _renew(self, name: str, lease_s: float) -> None:
        """An episode may be held up for longer than it was given: its box lives as long as this side wants it."""
        while True:
            await asyncio.sleep(max(lease_s / 3, _LEAST_RENEWAL_S))
            try:
                request = pb.RenewBoxRequest(id=name, lease_ms=round(lease_s * 1000))
                await self._call(self._stub.RenewBox, request, lease_s / 3)
            except InfraError as error:
                log.warning("the lease of a box could not be renewed: %s", error.message)
            except (BoxEndedError, DataError):
                return  # the next call tells

    # ---- the stream

    def _hold(self) -> None:
        if self._holding is None or self._holding.done():
            self._holding = asyncio.create_task(self._keep_holding())

    async def _keep_holding(self) -> None:
        backoff = Backoff(0.1, 2.0)
        while True:
            try:
                async for _ in self._stub.HoldBoxes(pb.HoldBoxesRequest(holder=self.holder)):
                    self._held.set()
                    backoff.succeeded()
            except grpc.RpcError as error:
                raise_if_cancelled()
                log.info("the stream to %s was lost: %s", self._address, error)
            await asyncio.sleep(backoff.failed())

    # ---- calls

    async def _call(self, method: Callable[..., Awaitable[T]], request: Any, timeout_s: float) -> T:
        """Asks, and again while the service can't be reached."""
        until = self._lost.asked() + _LOST_S
        backoff = Backoff(0.1, 1.0)
        try:
            while True:
                began = time.monotonic()
                try:
                    answer = await method(request, timeout=timeout_s)
                except grpc.aio.AioRpcError as error:
                    raise_if_cancelled()
                    if (code := error.code()) is grpc.StatusCode.UNAVAILABLE:
                        self._lost.failed(began)
                    elif code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                        self._lost.answered()
                    if code is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > until:
                        _raise(error)
                else:
                    self._lost.answered()
                    return answer
                await asyncio.sleep(backoff.failed())
        finally:
            self._lost.left()


class Box:
    """A box that runs. Made by `BoxClient.box`."""

    def __init__(self, client: BoxClient, name: str, calls: int) -> None:
        self.name = name
        self._client = client
        self._calls = calls

    def another(
        self,
        *,
        work_s: float,
        files: Mapping[str, bytes] | None = None,
        limits: BoxLimits | None = None,
        patience_s: float = PATIENCE_S,
    ) -> "contextlib.AbstractAsyncContextManager[Box]":
        """A new box at the same service, which shares nothing with this one: to judge what this one made."""
        return self._client.box(work_s=work_s, files=files, limits=limits, patience_s=patience_s)

    async def bash(self, command: str, *, timeout_s: float = 30.0, output_bytes: int = 0) -> CommandResult:
        """Runs a command in the box's shell. Raises BoxEndedError, InfraError."""
        return await self.run(BoxLanguage.BASH, command, timeout_s=timeout_s, output_bytes=output_bytes)

    async def python(self, source: str, *, timeout_s: float = 30.0, output_bytes: int = 0) -> CommandResult:
        """Runs statements in the box's interpreter. Raises BoxEndedError, InfraError."""
        return await self.run(BoxLanguage.PYTHON, source, timeout_s=timeout_s, output_bytes=output_bytes)

    async def run(
        self, language: BoxLanguage, source: str, *, timeout_s: float = 30.0, output_bytes: int = 0
    ) -> CommandResult:
        """Runs a command. Output above `output_bytes` loses its middle; 0 is the service's bound."""
        self._calls += 1
        request = pb.RunInBoxRequest(
            id=self.name,
            call=self._calls,
            language=_LANGUAGES[language],
            source=source,
            timeout_ms=max(1, round(timeout_s * 1000)),
            output_bytes=output_bytes,
        )
        wire = await self._client._call(self._client._stub.RunInBox, request, timeout_s + _EXTRA_S)
        ending = CommandEnding[pb.BoxCommandEnding.Name(wire.ending).removeprefix("BOX_COMMAND_ENDING_")]
        return CommandResult(ending, wire.code, wire.output, wire.left_out_bytes, wire.state_lost, wire.wall_us / 1e6)

    async def read(self, path: str, *, most_bytes: int = 0) -> bytes:
        """A file. Raises FileNotFoundError with the reason, BoxEndedError, InfraError."""
        request = pb.ReadBoxFileRequest(id=self.name, path=path, most_bytes=most_bytes)
        found = await self._client._call(self._client._stub.ReadBoxFile, request, _EXTRA_S)
        if found.refusal:
            raise FileNotFoundError(f"{path}: {found.refusal}")
        return found.data

    async def write(self, path: str, data: bytes | str, *, executable: bool = False) -> None:
        """Makes or replaces a file. Raises OSError with the reason, BoxEndedError, InfraError."""
        body = data.encode() if isinstance(data, str) else data
        request = pb.WriteBoxFileRequest(id=self.name, path=path, data=body, executable=executable)
        done = await self._client._call(self._client._stub.WriteBoxFile, request, _EXTRA_S)
        if done.refusal:
            raise OSError(f"{path}: {done.refusal}")


def _raise(error: grpc.aio.AioRpcError) -> NoReturn:
    """Raises what a failed call stands for."""
    for key, value in error.trailing_metadata() or ():
        if key == END_KEY:
            wire = pb.BoxEnd.FromString(value if isinstance(value, bytes) else value.encode())
            end = BoxEnd(_cause_of(wire.cause), wire.message)
            if end.cause.of_program:
                raise BoxEndedError(wire.id, end) from error
            if end.cause is BoxEndCause.CLOSED:
                raise DataError(f"box {wire.id} is closed", fix="use a box inside its context only") from error
            raise InfraError(f"box {wire.id} was lost ({end.cause}): {end.message}", fix="try again") from error
    raise_as(error)


def _cause_of(cause: pb.BoxEndCause.ValueType) -> BoxEndCause:
    """A cause by the wire's name; one that is not known here is the machine's."""
    try:
        return BoxEndCause[pb.BoxEndCause.Name(cause).removeprefix("BOX_END_CAUSE_")]
    except (KeyError, ValueError):
        return BoxEndCause.INFRA
