"""Distributed traces: spans of a prompt group's life and of a published version, for an OpenTelemetry collector.

Owns which groups are traced and how spans find each other: trace and span ids are hashes of (run, group, sample or
policy), so every process knows its parents without a word on the wire, and all trace the same groups. A group's trace
ends with a link to the trace of the version that came of it. Without a sink nothing is computed or kept.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import xxhash

Attributes: TypeAlias = Mapping[str, str | int | float | bool]

_LOW = 2**64


@dataclass(frozen=True, slots=True)
class SpanIds:
    """The ids of a span: of its trace (128 bits) and its own (64 bits)."""

    trace: int
    span: int

    @property
    def trace_id(self) -> str:
        """As 32 hexadecimal digits, as trace viewers search for it."""
        return f"{self.trace:032x}"


@dataclass(frozen=True, slots=True)
class Span:
    """A finished span. Times are unix seconds; `own` is None where nobody else has to know its id."""

    name: str
    began: float
    ended: float
    own: SpanIds | None = None
    parent: SpanIds | None = None
    links: Sequence[SpanIds] = ()
    attributes: Attributes = field(default_factory=dict)
    error: str = ""


class SpanSink(Protocol):
    """Where spans go. Both are called from any thread, and never raise or wait for a network."""

    def emit(self, span: Span) -> None:
        """Queue a span."""

    def close(self) -> None:
        """Send what is queued, for a moment."""


class Traces:
    """The traces of one process. `share` is the part of the prompt groups that is traced."""

    def __init__(self, run: str = "", share: float = 0.0, sink: SpanSink | None = None) -> None:
        self._run = run
        self._below = int(share * _LOW)
        self._sink = sink
        self._wall = time.time() - time.monotonic()

    @property
    def on(self) -> bool:
        """Whether any span is wanted."""
        return self._sink is not None

    def wants(self, group: int) -> bool:
        """Whether this group is traced: by its trace id, as OpenTelemetry's ratio sampler does."""
        return self._sink is not None and self.group(group).trace % _LOW < self._below

    def group(self, group: int) -> SpanIds:
        """The root of a group's trace."""
        return self._place(f"group/{group}", "root")

    def sample(self, group: int, index: int, attempt: int) -> SpanIds:
        """A try at a sample, below its group."""
        return self._place(f"group/{group}", f"sample/{index}/{attempt}")

    def step(self, group: int, step: int) -> SpanIds:
        """The step that trained a group, in the group's trace."""
        return self._place(f"group/{group}", f"step/{step}")

    def policy(self, policy_id: str) -> SpanIds:
        """The root of a published version's trace."""
        return self._place(f"policy/{policy_id}", "root")

    def exemplar(self, group: int) -> dict[str, str] | None:
        """Exemplar that ties an observation of a histogram to this group's trace."""
        return {"trace_id": self.group(group).trace_id} if self.wants(group) else None

    def emit(
        self,
        name: str,
        began: float,
        ended: float,
        *,
        own: SpanIds | None = None,
        parent: SpanIds | None = None,
        links: Sequence[SpanIds] = (),
        error: str = "",
        attributes: Attributes | None = None,
    ) -> None:
        """A span is over. Times are unix seconds; attributes are named areal.<name>."""
        if self._sink is not None:
            named = {f"areal.{key}": value for key, value in (attributes or {}).items()}
            self._sink.emit(Span(name, began, max(began, ended), own, parent, links, named, error))

    def wall(self, monotonic: float) -> float:
        """A time of the monotonic clock in unix seconds."""
        return self._wall + monotonic

    def close(self) -> None:
        """Send what is queued."""
        if self._sink is not None:
            self._sink.close()

    def _place(self, of: str, span: str) -> SpanIds:
        name = f"{self._run}/{of}"
        trace = xxhash.xxh3_128_intdigest(name.encode())
        return SpanIds(trace or 1, xxhash.xxh3_64_intdigest(f"{name}/{span}".encode()) or 1)


NO_TRACES = Traces()
