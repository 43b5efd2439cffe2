"""One box as its service holds it: a session of the sandbox with a driver, asked one thing at a time.

What comes from the cell is hostile. A driver that is silent, falsified or gone was ended by what ran beside it, unless
the sandbox itself says that the machine failed.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from areal.values import boxes as values

from areal_judge.boxes.driver import DRIVER
from areal_judge.boxes.driver.frames import packed, unpacked
from areal_judge.sandbox.host.session import CellSession, FrameError
from areal_judge.sandbox.values import Driver, Ending, Limits, ProgramRun, RunEnding

MOST_FRAME_BYTES = values.MOST_FILE_BYTES + values.MOST_OUTPUT_BYTES
_SLACK_S = 30.0  # beyond a command's time: ending what it started, on a loaded machine
_CAUSES = {
    Ending.MEMORY_LIMIT: values.BoxEndCause.MEMORY_LIMIT,
    Ending.CPU_LIMIT: values.BoxEndCause.CPU_LIMIT,
    Ending.PROCESS_LIMIT: values.BoxEndCause.PROCESS_LIMIT,
    Ending.DISK_LIMIT: values.BoxEndCause.DISK_LIMIT,
}
BOX_LIMITS = Limits(
    memory_bytes=512 << 20, disk_bytes=128 << 20, inodes=16384, processes=64, open_files=256, stack_bytes=16 << 20
)
"""Of a box unless its maker says otherwise. Wall and processor time are its lease's matter."""


class DriverFalsity(Exception):
    """The driver doesn't answer, or what it answers is no answer."""


class DriverGone(DriverFalsity):
    """The driver has ended; the sandbox knows how."""


def run_of(request: "BoxRequest", longest_s: float) -> ProgramRun:
    """The sandbox's run behind a box. Its time is bounded by its lease; the sandbox's own bound is far behind that."""
    limits = replace(request.limits, wall_s=2 * longest_s, cpu_s=2 * longest_s * request.limits.processes)
    return ProgramRun(Driver(DRIVER), files=request.files, limits=limits)


def end_of(ended: RunEnding, *, asked: bool) -> values.BoxEnd:
    """Why a box ended that nobody asked to end.

    `asked`: whether a command was ever given to it. Before the first one nothing of a program runs in a box, so that a
    signal came from outside.
    """
    cause = _CAUSES.get(ended.ending, values.BoxEndCause.PROGRAM)
    if ended.signal is not None and not asked:
        return values.BoxEnd(values.BoxEndCause.INFRA, f"the box was killed from outside (signal {ended.signal})")
    if cause is values.BoxEndCause.PROGRAM:
        how = f"exit code {ended.exit_code}" if ended.signal is None else f"signal {ended.signal}"
        return values.BoxEnd(cause, f"what serves the box was ended by what ran in it ({how})")
    return values.BoxEnd(cause, f"the box passed its {cause.value.replace('_limit', '')} limit")


class DriverLine:
    """Requests to a box's driver, one after the other."""

    def __init__(self, session: CellSession) -> None:
        self._session = session
        self._turn = asyncio.Lock()
        self.asked = False  # whether a command was ever given

    async def run(
        self, language: values.BoxLanguage, source: str, timeout_s: float, output_bytes: int
    ) -> values.CommandResult:
        """Runs a command. Raises Falsified."""
        self.asked = True
        output_bytes = min(output_bytes, values.MOST_OUTPUT_BYTES)
        head = {"op": "run", "language": language.value, "timeout_s": timeout_s, "output_bytes": output_bytes}
        answer, output = await self._ask(head, source.encode("utf-8", "surrogateescape"), timeout_s + _SLACK_S)
        try:
            return values.CommandResult(
                ending=values.CommandEnding(answer["ending"]),
                code=int(answer["code"]) & 0xFF,
                output=output,
                left_out_bytes=max(0, int(answer["left_out"])),
                state_lost=bool(answer["state_lost"]),
                wall_s=max(0.0, min(float(answer["wall_s"]), timeout_s + _SLACK_S)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DriverFalsity(f"an answer that is none: {error}") from error

    async def read(self, path: str, most_bytes: int) -> tuple[bytes, str]:
        """A file, or why there is none. Raises Falsified."""
        head = {"op": "read", "path": path, "most_bytes": min(most_bytes, values.MOST_FILE_BYTES)}
        answer, data = await self._ask(head, b"", _SLACK_S)
        return data, str(answer.get("refusal", ""))[:500]

    async def write(self, path: str, data: bytes, *, executable: bool) -> str:
        """Why the file could not be written; empty when it was. Raises Falsified."""
        answer, _ = await self._ask({"op": "write", "path": path, "executable": executable}, data, _SLACK_S)
        return str(answer.get("refusal", ""))[:500]

    async def _ask(self, head: dict[str, Any], body: bytes, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        async with self._turn:
            try:
                await self._session.send(packed(head, body))
                frame = await self._session.receive(timeout_s)
                if frame is None:
                    raise DriverGone("what serves the box has ended")
                return unpacked(frame)
            except TimeoutError as error:
                raise DriverFalsity(f"no answer for {timeout_s:.0f} s: what serves the box was stopped") from error
            except (FrameError, ValueError, RecursionError) as error:
                raise DriverFalsity(f"an answer that is none: {error}") from error
            except OSError as error:
                raise DriverGone("its channel is closed: the box is being ended") from error


@dataclass(frozen=True)
class BoxRequest:
    """What a box is to be. Two requests of one id are the same when they are equal, leases and holders apart."""

    id: str
    limits: Limits = BOX_LIMITS
    files: Mapping[str, bytes] = field(default_factory=dict)
