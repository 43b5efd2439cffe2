"""The role `weights`: serves files of the run's volume to generation servers that don't mount it.

Owns which files may be read: those directly below the start model's directory, the tokenizer's and each published
version's. Servers serve their copies of versions to each other by the same service; here is told who reads from whom.
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from areal.errors import DataError, ExitCode
from areal.net.server import GrpcServer
from areal.net.status import abort
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import WaitRegistry
from areal.plan.context import RoleContext
from areal.v1 import weights_pb2 as wire
from areal.v1 import weights_pb2_grpc as rpc
from areal.values.policy import PolicyId
from areal.weights.mirror import MODEL, TOKENIZER

log = logging.getLogger(__name__)

_CHUNK_BYTES = 2 << 20
_SMALL_BYTES = 32 << 20  # less is read from the volume by everybody
_READERS = 2  # of one source at a time
_GIVEN_UP_S = 600.0  # a reader that never said that it has it
_DIRECTORIES = 4
_DRAIN_S = 2.0  # readers continue at the next start from the bytes that they have


class ReaderTree:
    """Who reads a directory from whom: each source has few readers at a time, and whoever has it whole is a source.

    So n servers have a version after about log₂ n times what one needs, and the volume is read a few times. Pure; times
    in seconds.
    """

    def __init__(self) -> None:
        self._sources: dict[str, list[str]] = {}  # directory → servers that have it
        self._reading: dict[tuple[str, str], tuple[str, float]] = {}  # directory and reader → from whom, until when

    def source(self, directory: str, reader: str, now: float) -> str | None:
        """From whom to read now: a server, or "" for the volume's own; None: nobody has time."""
        self._reading = {key: place for key, place in self._reading.items() if key[1] != reader and place[1] > now}
        busy = Counter(of for (what, _), (of, _) in self._reading.items() if what == directory)
        others = [source for source in self._sources.get(directory, ()) if source != reader]  # it lost its own copy
        found: str = min(["", *others], key=lambda source: busy[source])
        if busy[found] >= _READERS:
            return None
        self._reading[directory, reader] = found, now + _GIVEN_UP_S
        return found

    def has(self, directory: str, reader: str) -> None:
        """A reader has it whole. Of all but the newest directories nobody is asked any more."""
        self._reading.pop((directory, reader), None)
        sources = self._sources.setdefault(directory, [])
        if reader not in sources:
            sources.append(reader)
        for old in list(self._sources)[:-_DIRECTORIES]:
            del self._sources[old]


class VolumeFilesService(rpc.VolumeFilesServicer):
    """Lists and reads files of named directories. `fixed` are those that no publisher makes."""

    def __init__(self, fixed: dict[str, Path], versions: Path, metrics: RoleMetrics) -> None:
        self._fixed = fixed
        self._versions = versions
        self._metrics = metrics
        self._tree = ReaderTree()

    def _directory(self, name: str) -> Path:
        if name in self._fixed:
            return self._fixed[name]
        if PolicyId.from_directory(name) is None:
            raise DataError(f"{name!r} is no directory that is served")
        return self._versions / name

    async def ListFiles(
        self, request: wire.ListFilesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> wire.ListFilesResponse:
        """Names and sizes of a directory's files, and from whom to read them."""
        name, reader = request.directory, request.reader
        try:
            with os.scandir(self._directory(name)) as entries:
                sizes = {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
            if request.has:
                self._tree.has(name, reader)
            if request.has or not reader or sum(sizes.values()) < _SMALL_BYTES:
                return wire.ListFilesResponse(sizes=sizes)
            source = self._tree.source(name, reader, time.monotonic())
            return wire.ListFilesResponse(sizes=sizes, source=source or "", busy=source is None)
        except (OSError, DataError) as error:
            await abort(context, _refusal(request.directory, error))

    async def ReadFile(
        self, request: wire.ReadFileRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[wire.FileChunk]:
        """A file's bytes from an offset."""
        sent = self._metrics.counter("areal_volume_read_bytes_total")
        try:
            path = self._directory(request.directory) / request.name
            if Path(request.name).name != request.name or not path.is_file():
                raise FileNotFoundError(f"it has no file {request.name!r}")
            with path.open("rb", buffering=0) as file:
                file.seek(request.offset)
                while data := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                    yield wire.FileChunk(data=data)
                    sent.inc(len(data))
        except (OSError, DataError) as error:
            await abort(context, _refusal(request.directory, error))


def _refusal(directory: str, error: Exception) -> DataError:
    return DataError(f"{directory} can't be read from the volume: {error}", fix="Ask for a newer version.")


async def run(ctx: RoleContext) -> int:
    """Serve until asked to stop; returns the exit code."""
    resolved = ctx.resolved
    metrics = RoleMetrics(ctx.role, resolved.name)
    server = GrpcServer(ctx.role, ctx.access, waits=WaitRegistry(ctx.role), progress=ctx.progress)
    fixed = {MODEL: resolved.model_path, TOKENIZER: resolved.tokenizer_path}
    files = VolumeFilesService(fixed, resolved.layout.weights, metrics)
    server.add(rpc.add_VolumeFilesServicer_to_server, files, "areal.v1.VolumeFiles")
    port = await server.start(ctx.port, ctx.bind)
    metrics.serve(ctx.metrics_port, ctx.bind)
    await server.set_ready(True)
    ctx.progress.doing = "serving files of the volume"
    log.info("serving files of the volume on port %d", port)
    await ctx.stop.wait()
    await server.stop(_DRAIN_S)
    return ExitCode.DONE
