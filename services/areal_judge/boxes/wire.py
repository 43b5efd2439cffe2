"""Protobuf of boxes to and from its values."""

from __future__ import annotations

from dataclasses import replace

from areal.errors import DataError
from areal.v1 import boxes_pb2 as pb
from areal.v1 import sandbox_pb2
from areal.values.boxes import BoxEnd, BoxLanguage, CommandResult

from areal_judge.boxes.values import BOX_LIMITS, BoxRequest
from areal_judge.sandbox.values import Limits

_LANGUAGES = {pb.BOX_LANGUAGE_BASH: BoxLanguage.BASH, pb.BOX_LANGUAGE_PYTHON: BoxLanguage.PYTHON}
_LIMITS = ("memory_bytes", "disk_bytes", "inodes", "processes", "open_files", "stack_bytes")


def end_to_wire(name: str, end: BoxEnd) -> pb.BoxEnd:
    """A box's end."""
    cause = pb.BoxEndCause.Value(f"BOX_END_CAUSE_{end.cause.name}")
    return pb.BoxEnd(id=name, cause=cause, message=end.message)


def request_of(wire: pb.CreateBoxRequest) -> BoxRequest:
    """What a box is to be. Raises DataError."""
    if not wire.id or len(wire.id) > 200:
        raise DataError("a box needs an id of 1 to 200 characters", fix="choose one, new for each box")
    return BoxRequest(wire.id, _limits(wire.limits), dict(wire.files))


def _limits(wire: sandbox_pb2.SandboxLimits) -> Limits:
    given = {name: value for name in _LIMITS if (value := getattr(wire, name))}
    limits = replace(BOX_LIMITS, **given)
    if limits.processes < 8:
        raise DataError("a box needs at least 8 processes", fix="raise limits.processes, or leave it out")
    return limits


def language_of(wire: pb.BoxLanguage.ValueType) -> BoxLanguage:
    """A command's language. Raises DataError."""
    if wire not in _LANGUAGES:
        raise DataError("a command's language is missing", fix="set it to BASH or PYTHON")
    return _LANGUAGES[wire]


def result_to_wire(result: CommandResult) -> pb.RunInBoxResult:
    """How a command ended."""
    return pb.RunInBoxResult(
        ending=pb.BoxCommandEnding.Value(f"BOX_COMMAND_ENDING_{result.ending.name}"),
        code=result.code,
        output=result.output,
        left_out_bytes=result.left_out_bytes,
        state_lost=result.state_lost,
        wall_us=round(result.wall_s * 1e6),
    )
