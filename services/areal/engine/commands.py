"""Commands of the scheduler's thread.

Each command is handled between two steps, never within one.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from areal.engine.request import GenerateRequest

WEIGHTS, KV_CACHE = "weights", "kv_cache"  # the kinds of memory that can be released: SGLang's tags
PauseMode: TypeAlias = Literal["abort", "retract", "in_place"]


@dataclass(frozen=True)
class CommandReply:
    """Whether a command did what was asked, and in words why not."""

    success: bool = True
    message: str = ""


@dataclass(frozen=True)
class ReplyCommand:
    """A command that somebody waits for: `done` has the reply once its effect is there."""

    done: Future[CommandReply] = field(default_factory=Future, kw_only=True)


@dataclass(frozen=True)
class Add:
    """New requests. Those whose rid is taken end at once, with status 400."""

    requests: list[GenerateRequest]


@dataclass(frozen=True)
class Abort:
    """End requests with what they made, or all (`rids` None)."""

    rids: tuple[str, ...] | None


@dataclass(frozen=True)
class Pause(ReplyCommand):
    """Stop stepping: end running requests, put them back into the queue, or freeze them."""

    mode: PauseMode


@dataclass(frozen=True)
class Continue(ReplyCommand):
    """Step again."""


@dataclass(frozen=True)
class Load(ReplyCommand):
    """Use other weights from the next step on. Without a pause it waits until the requests before it have ended."""

    weights: Any  # of the model that the scheduler has
    path: str
    version: str | None
    flush_cache: bool
    abort_all: bool


@dataclass(frozen=True)
class SetVersion(ReplyCommand):
    """Rename the weights in use."""

    version: str
    abort_all: bool


@dataclass(frozen=True)
class Flush(ReplyCommand):
    """Give back cache memory. While requests hold some it is refused, or waits (`when_idle`)."""

    when_idle: bool = False


@dataclass(frozen=True)
class Release(ReplyCommand):
    """Free memory of these kinds. Refused while requests hold it: pause with `retract` first."""

    kinds: frozenset[str]


@dataclass(frozen=True)
class Resume(ReplyCommand):
    """Allow memory of these kinds again. Refused for what isn't released; weights then have to be loaded."""

    kinds: frozenset[str]


@dataclass(frozen=True)
class StopThread:
    """End the thread. Running requests end with what they made."""


Command: TypeAlias = Add | Abort | ReplyCommand | StopThread
