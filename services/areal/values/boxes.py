"""Values of boxes that their service and its callers share: languages, ends of commands, ends of boxes."""

from dataclasses import dataclass
from enum import StrEnum

END_KEY = "box-end-bin"  # trailing metadata of every call to an ended box: an areal.v1.BoxEnd
DEFAULT_OUTPUT_BYTES = 64 << 10
MOST_OUTPUT_BYTES = 4 << 20
MOST_FILE_BYTES = 8 << 20


class BoxLanguage(StrEnum):
    """What a command is written in."""

    BASH = "bash"
    PYTHON = "python"


class BoxEndCause(StrEnum):
    """Why a box ended."""

    CLOSED = "closed"
    EXPIRED = "expired"  # its lease ended
    DISCONNECTED = "disconnected"  # its holder went and did not come back
    STOPPED = "stopped"  # the service did
    INFRA = "infra"  # the machine failed
    UNKNOWN = "unknown"  # no such box here: it never was, or the service is another one by now
    MEMORY_LIMIT = "memory_limit"
    CPU_LIMIT = "cpu_limit"
    PROCESS_LIMIT = "process_limit"
    DISK_LIMIT = "disk_limit"
    PROGRAM = "program"  # it killed, stopped or falsified what serves its box

    @property
    def of_program(self) -> bool:
        """Whether the end says something about what ran in the box: everything else is an infrastructure fault."""
        return self in _OF_PROGRAM


_OF_PROGRAM = frozenset({
    BoxEndCause.MEMORY_LIMIT, BoxEndCause.CPU_LIMIT, BoxEndCause.PROCESS_LIMIT, BoxEndCause.DISK_LIMIT,
    BoxEndCause.PROGRAM,
})  # fmt: skip


@dataclass(frozen=True)
class BoxEnd:
    """The end of a box."""

    cause: BoxEndCause
    message: str = ""


class BoxEndedError(Exception):
    """The box has ended, so nothing can be asked of it. Carries the end."""

    def __init__(self, box: str, end: BoxEnd) -> None:
        super().__init__(f"box {box} has ended ({end.cause}): {end.message}")
        self.box = box
        self.end = end


class CommandEnding(StrEnum):
    """How a command ended."""

    EXITED = "exited"
    SIGNALED = "signaled"  # the shell or the interpreter itself was killed
    TIME_LIMIT = "time_limit"


@dataclass(frozen=True)
class CommandResult:
    """What a command did. `code` is the exit code, or the signal."""

    ending: CommandEnding
    code: int
    output: bytes
    left_out_bytes: int
    state_lost: bool
    wall_s: float
