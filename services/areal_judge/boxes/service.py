"""The Boxes gRPC service: the registry behind the generated servicer.

A call to an ended box is FAILED_PRECONDITION with its end attached, so that no caller takes one kind of end for
another.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import grpc
from areal.errors import ArealError, DataError
from areal.net import status
from areal.v1 import boxes_pb2 as pb
from areal.v1 import boxes_pb2_grpc as rpc
from areal.v1 import sandbox_pb2
from areal.values import boxes

from areal_judge.boxes.box import BOX_LIMITS, BoxRequest
from areal_judge.boxes.driver import DRIVER
from areal_judge.boxes.driver.processes import below, parents
from areal_judge.boxes.registry import BoxBounds, BoxRegistry
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig
from areal_judge.sandbox.values import Limits, Tier

SERVICE_NAME = "areal.v1.Boxes"
_BEAT_S = 5.0  # of a holder's stream: how often it hears that it is heard

Context = grpc.aio.ServicerContext[Any, Any]
_LANGUAGES = {pb.BOX_LANGUAGE_BASH: boxes.BoxLanguage.BASH, pb.BOX_LANGUAGE_PYTHON: boxes.BoxLanguage.PYTHON}
_BOUNDED = ("memory_bytes", "disk_bytes", "inodes", "processes", "open_files", "stack_bytes")
_OF_ZYGOTE = 2  # the process outside its pid namespace, and the one inside
_OF_CELL = 2  # its first process, and a program that waits
_KINDS = 3  # of cells without a run: ready ones, idle ones, and some of another shape


class BoxesService(rpc.BoxesServicer):
    """Calls the registry."""

    def __init__(self, registry: BoxRegistry, sandbox: Sandbox) -> None:
        self._registry = registry
        self._sandbox = sandbox

    async def CreateBox(self, request: pb.CreateBoxRequest, context: Context) -> pb.BoxState:
        try:
            asked = _request_of(request)
            new = await self._registry.create(asked, request.holder, request.lease_ms / 1000)
            return self._state(request.id, new=new)
        except (boxes.BoxEndedError, ArealError) as error:
            await _refuse(context, error)

    async def RunInBox(self, request: pb.RunInBoxRequest, context: Context) -> pb.RunInBoxResult:
        try:
            result = await self._registry.run(
                request.id,
                request.call,
                _language_of(request.language),
                request.source,
                request.timeout_ms / 1000,
                request.output_bytes or boxes.DEFAULT_OUTPUT_BYTES,
            )
        except (boxes.BoxEndedError, ArealError) as error:
            await _refuse(context, error)
        return pb.RunInBoxResult(
            ending=pb.BoxCommandEnding.Value(f"BOX_COMMAND_ENDING_{result.ending.name}"),
            code=result.code,
            output=result.output,
            left_out_bytes=result.left_out_bytes,
            state_lost=result.state_lost,
            wall_us=round(result.wall_s * 1e6),
        )

    async def ReadBoxFile(self, request: pb.ReadBoxFileRequest, context: Context) -> pb.ReadBoxFileResult:
        try:
            most = request.most_bytes or boxes.MOST_FILE_BYTES
            data, refusal = await self._registry.read(request.id, request.path, most)
        except boxes.BoxEndedError as error:
            await _refuse(context, error)
        return pb.ReadBoxFileResult(data=data, refusal=refusal)

    async def WriteBoxFile(self, request: pb.WriteBoxFileRequest, context: Context) -> pb.WriteBoxFileResult:
        if len(request.data) > boxes.MOST_FILE_BYTES:
            return pb.WriteBoxFileResult(refusal=f"it is longer than {boxes.MOST_FILE_BYTES} bytes")
        try:
            refusal = await self._registry.write(request.id, request.path, request.data, executable=request.executable)
        except boxes.BoxEndedError as error:
            await _refuse(context, error)
        return pb.WriteBoxFileResult(refusal=refusal)

    async def RenewBox(self, request: pb.RenewBoxRequest, context: Context) -> pb.BoxState:
        try:
            self._registry.renew(request.id, request.lease_ms / 1000)
            return self._state(request.id, new=False)
        except boxes.BoxEndedError as error:
            await _refuse(context, error)

    async def CloseBox(self, request: pb.CloseBoxRequest, context: Context) -> pb.BoxEnd:
        return _end_to_wire(request.id, await self._registry.close(request.id))

    async def HoldBoxes(self, request: pb.HoldBoxesRequest, context: Context) -> AsyncIterator[pb.HoldBoxesReply]:
        with self._registry.held(request.holder):
            while True:
                yield pb.HoldBoxesReply(boxes=self._registry.boxes_of(request.holder))
                await asyncio.sleep(_BEAT_S)

    async def CountBoxes(self, request: pb.CountBoxesRequest, context: Context) -> pb.BoxCensus:
        registry = self._registry
        return pb.BoxCensus(
            live=registry.live,
            starting=registry.starting,
            capacity=registry.bounds.boxes,
            created_total=registry.created,
            ended_total=registry.ends.total(),
            **await asyncio.to_thread(_count, self._sandbox),
        )

    def _state(self, name: str, *, new: bool) -> pb.BoxState:
        left_s, calls = self._registry.state(name)
        tier = sandbox_pb2.SandboxTier.Value(f"SANDBOX_TIER_{self._sandbox.powers.tier.name}")
        return pb.BoxState(id=name, created=new, lease_ms=round(left_s * 1000), calls=calls, tier=tier)


async def _refuse(context: Context, error: boxes.BoxEndedError | ArealError) -> NoReturn:
    if isinstance(error, boxes.BoxEndedError):
        end = _end_to_wire(error.box, error.end).SerializeToString()
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error), ((boxes.END_KEY, end),))
        raise error
    await status.abort(context, error)


def _end_to_wire(name: str, end: boxes.BoxEnd) -> pb.BoxEnd:
    """A box's end."""
    cause = pb.BoxEndCause.Value(f"BOX_END_CAUSE_{end.cause.name}")
    return pb.BoxEnd(id=name, cause=cause, message=end.message)


def _request_of(wire: pb.CreateBoxRequest) -> BoxRequest:
    """What a box is to be. Raises DataError."""
    if not wire.id or len(wire.id) > 200:
        raise DataError("a box needs an id of 1 to 200 characters", fix="choose one, new for each box")
    return BoxRequest(wire.id, _limits(wire.limits), dict(wire.files))


def _limits(wire: sandbox_pb2.SandboxLimits) -> Limits:
    given = {name: value for name in _BOUNDED if (value := getattr(wire, name))}
    limits = replace(BOX_LIMITS, **given)
    if limits.processes < 8:
        raise DataError("a box needs at least 8 processes", fix="raise limits.processes, or leave it out")
    return limits


def _language_of(wire: pb.BoxLanguage.ValueType) -> boxes.BoxLanguage:
    """A command's language. Raises DataError."""
    if wire not in _LANGUAGES:
        raise DataError("a command's language is missing", fix="set it to BASH or PYTHON")
    return _LANGUAGES[wire]


def _count(sandbox: Sandbox) -> dict[str, int]:
    """Processes below the zygotes, directories of their cells' groups, what both may be while no box is there, and
    descriptors of this process. A walk through /proc: for tests, metrics and people, not for each box."""
    zygotes = sandbox.zygotes()
    parent_of = parents()
    processes = sum(1 + len(below(zygote.pid, parent_of, frozenset())) for zygote in zygotes)
    waiting = _KINDS * sandbox.spares
    return {
        "processes": processes,
        "process_floor": len(zygotes) * (_OF_ZYGOTE + _OF_CELL * waiting),
        "groups": sum(_directories(zygote.groups) for zygote in zygotes),
        "group_floor": len(zygotes) * waiting,
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def _directories(paths: tuple[str, ...]) -> int:
    """Groups of cells below a zygote's; each hierarchy has one of each, so the fullest counts."""
    most = 0
    for path in paths:
        with contextlib.suppress(OSError):
            most = max(most, sum(entry.is_dir() for entry in os.scandir(path)))
    return most


# ---- Service stack of boxes, built and ended together: a sandbox of its own, and the registry over it
# Of its own, so that boxes, which stay, never take a place from programs that are judged.


_MOST_ZYGOTES = 8
_CELLS_A_ZYGOTE = 400  # fewer than the users that a zygote has for them


@dataclass(frozen=True)
class BoxSettings:
    """What to build."""

    bounds: BoxBounds = field(default_factory=BoxBounds)
    min_tier: Tier = Tier.T3  # a box forks, executes and writes files: lower tiers can't have any


@dataclass(frozen=True)
class BoxStack:
    """The parts that others use."""

    sandbox: Sandbox
    registry: BoxRegistry
    service: BoxesService


@contextlib.asynccontextmanager
async def box_stack(settings: BoxSettings) -> AsyncIterator[BoxStack]:
    """Starts it; afterwards nothing of it is left.

    Raises:
        ConfigError: the machine is below the tier; says what is missing.
        InfraError: the sandbox does not start.
    """
    boxes = settings.bounds.boxes
    wanted = max(min(_MOST_ZYGOTES, os.cpu_count() or 1), -(-boxes // _CELLS_A_ZYGOTE))
    config = SandboxConfig(
        min_tier=max(settings.min_tier, Tier.T3), zygotes=wanted, spares=4, drivers=(DRIVER,), max_runs=boxes
    )
    sandbox = Sandbox(config)
    registry = BoxRegistry(sandbox, settings.bounds)
    try:
        await sandbox.start()
        yield BoxStack(sandbox, registry, BoxesService(registry, sandbox))
    finally:
        await registry.stop()
        await sandbox.stop()
