"""The role `weights`: serves files of the run's volume to generation servers that don't mount it.

Owns which files may be read: those directly below the start model's directory, the tokenizer's and each published
version's, for whoever has the job's token. It writes nothing.
"""

import asyncio
import logging
import os
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
_DRAIN_S = 2.0  # readers continue at the next start from the bytes that they have


class VolumeFilesService(rpc.VolumeFilesServicer):
    """Lists and reads files of named directories. `fixed` are those that no publisher makes."""

    def __init__(self, fixed: dict[str, Path], versions: Path, metrics: RoleMetrics) -> None:
        self._fixed = fixed
        self._versions = versions
        self._metrics = metrics

    def _directory(self, name: str) -> Path:
        if name in self._fixed:
            return self._fixed[name]
        if PolicyId.from_directory(name) is None:
            raise DataError(f"{name!r} is no directory that is served")
        return self._versions / name

    async def ListFiles(
        self, request: wire.ListFilesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> wire.ListFilesResponse:
        """Names and sizes of a directory's files."""
        try:
            with os.scandir(self._directory(request.directory)) as entries:
                return wire.ListFilesResponse(
                    sizes={entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
                )
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
