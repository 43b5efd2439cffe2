"""Time accounting of a run: every second of every role under one named cause, so that a role's causes sum to all of it.

Pure: spans of time in, seconds by role and cause out. What a role did comes from the trainer's rows of metrics and from
the moments that workers record of their samples; why it did nothing comes from who else was at work at that moment, and
from the gate's rule over the groups begun and the versions published by then.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

PHASES = ("publish", "checkpoint", "wait", "take", "prox", "train")  # in the order in which a row of metrics has them
_GAP_S = 0.05  # between two rows: less is the clock


@dataclass(frozen=True)
class BusySpan:
    """From `began` to `ended`, unix seconds."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True)
class EpisodeTimes:
    """When a sample was generated and scored, on which server; `group` is None for rows of an evaluation."""

    group: int | None
    server: str
    generated: Sequence[BusySpan] = ()
    scored: Sequence[BusySpan] = ()
    version: int = -1  # of its first token
    tokens: int = 0  # sampled ones
    worker: str = ""


@dataclass(frozen=True)
class StepTimes:
    """A trained step as metrics.jsonl has it: when it ended, and its seconds by phase."""

    step: int
    ended: float
    wall_s: float
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Gate:
    """What bounds admission. All counts are groups or versions."""

    batch: int
    ahead: int  # batches beyond the newest version
    max_steps: int
    staleness: int  # the bound, which closes no gate by itself
    admission_order: bool = False


@dataclass(frozen=True)
class Ledger:
    """Seconds of each role by cause, from `began` to `ended`."""

    began: float
    ended: float
    roles: Mapping[str, Mapping[str, float]]

    def share(self, role: str, cause: str) -> float:
        """Which part of the time a role spent on a cause."""
        return self.roles[role].get(cause, 0.0) / (self.ended - self.began)


def account(
    rows: Sequence[StepTimes], episodes: Sequence[EpisodeTimes], gate: Gate, servers: Iterable[str] = ()
) -> Ledger:
    """The ledger of the time that `rows`, one after the other, took.

    Args:
        servers: names of servers that may have generated nothing.
    """
    began, ended = rows[0].ended - rows[0].wall_s, rows[-1].ended
    trainer = trainer_spans(rows)
    training = [one for one in episodes if one.group is not None]
    others = [one for one in episodes if one.group is None]
    generating = union(span for one in training for span in one.generated)
    scoring = union(span for one in training for span in one.scored)
    evaluating = union(span for one in others for span in (*one.generated, *one.scored))
    closed = closed_spans(rows, training, gate)
    because = (("generation", generating), ("scoring", scoring), ("evaluation", evaluating), ("weights", closed))
    roles = {"trainer": _charged(began, ended, [*trainer.items()], "wait", [(f"waits: {n}", s) for n, s in because])}
    names = sorted({*servers, *(one.server for one in episodes if one.server)})
    for name in names:
        own = [("generates", union(s for one in training if one.server == name for s in one.generated)),
               ("evaluates", union(s for one in others if one.server == name for s in one.generated))]  # fmt: skip
        roles[name] = _charged(began, ended, own, "", [("idle: gate closed", closed), ("idle: scoring", scoring)])
    return Ledger(began, ended, roles)


def trainer_spans(rows: Sequence[StepTimes]) -> dict[str, list[BusySpan]]:
    """The trainer's phases in time. Within a row their order is known and their seconds are, not their moments."""
    found: dict[str, list[BusySpan]] = {}
    before: float | None = None
    for row in rows:
        at = row.ended - row.wall_s
        if before is not None:
            if at > before + _GAP_S:
                found.setdefault("restarts", []).append(BusySpan(before, at))
            at = before if abs(at - before) <= _GAP_S else max(at, before)
        total = sum(row.seconds.get(phase, 0.0) for phase in PHASES)
        scale = min(1.0, (row.ended - at) / total) if total > 0 else 1.0
        for phase in PHASES:
            seconds = row.seconds.get(phase, 0.0) * scale
            if seconds > 0:
                found.setdefault(phase, []).append(BusySpan(at, at + seconds))
                at += seconds
        if row.ended > at:
            found.setdefault("other", []).append(BusySpan(at, row.ended))
        before = row.ended
    return found


def published(rows: Sequence[StepTimes]) -> dict[int, float]:
    """When each version was handed over: the publication of a step is in the row after it."""
    found = {}
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        found[row.step + 1] = row.ended + (following.seconds.get("publish", 0.0) if following is not None else 0.0)
    return found


def closed_spans(rows: Sequence[StepTimes], training: Sequence[EpisodeTimes], gate: Gate) -> list[BusySpan]:
    """When as many groups had begun as the published versions allow."""
    begins: dict[int, float] = {}
    for one in training:
        if one.group is not None and one.generated:
            first = min(span.began for span in one.generated)
            begins[one.group] = min(first, begins.get(one.group, first))
    highest: list[tuple[float, int]] = []  # at this time so many groups had begun
    for at, group in sorted((at, group) for group, at in begins.items()):
        highest.append((at, max(group + 1, highest[-1][1] if highest else 0)))
    if not highest:
        return []
    # Of some groups only every n-th may be recorded: those between two recorded ones begin with the later.
    steps = sorted(b - a for a, b in pairwise(sorted(begins)))
    stride = steps[len(steps) // 2] if steps else 1
    changes = sorted(published(rows).items(), key=lambda item: item[1])
    times = [at for at, _ in highest]
    edges = sorted({*times, *(at for _, at in changes)})
    first = rows[0].step
    found = []
    for at, until in zip(edges, [*edges[1:], rows[-1].ended], strict=True):
        place = bisect_right(times, at)
        count = highest[place - 1][1] if place else 0
        version = max((v for v, when in changes if when <= at), default=first)
        allowed = gate.batch * min(version + gate.ahead + 1, gate.max_steps)
        if count + stride > allowed and until > at:
            found.append(BusySpan(at, until))
    return union(found)


def union(spans: Iterable[BusySpan]) -> list[BusySpan]:
    """Disjoint spans in order that cover the same time."""
    found: list[BusySpan] = []
    for span in sorted(spans, key=lambda one: one.began):
        if span.ended <= span.began:
            continue
        if found and span.began <= found[-1].ended:
            found[-1] = BusySpan(found[-1].began, max(found[-1].ended, span.ended))
        else:
            found.append(span)
    return found


def covered(spans: Sequence[BusySpan], began: float, ended: float) -> float:
    """Seconds from `began` to `ended` that disjoint spans cover."""
    return sum(max(0.0, min(span.ended, ended) - max(span.began, began)) for span in spans)


_Named = Sequence[tuple[str, Sequence[BusySpan]]]


def _charged(began: float, ended: float, own: _Named, split: str, because: _Named) -> dict[str, float]:
    """Each moment to the first of `own` that covers it; what is idle, or `split`, to the first of `because`, else to
    the hand-over between roles. `split` "" is idle time."""
    named = [*own, *because]
    edges = {began, ended}
    for _, spans in named:
        edges.update(edge for span in spans for edge in (span.began, span.ended) if began < edge < ended)
    ordered = sorted(edges)
    starts = {id(spans): [span.began for span in spans] for _, spans in named}

    def covers(spans: Sequence[BusySpan], at: float) -> bool:
        place = bisect_right(starts[id(spans)], at) - 1
        return place >= 0 and spans[place].ended > at

    found: dict[str, float] = {}
    for at, until in pairwise(ordered):
        cause = next((name for name, spans in own if covers(spans, at)), "")
        if cause == split:
            rest = "waits: hand-over" if split else "idle: hand-over"
            cause = next((name for name, spans in because if covers(spans, at)), rest)
        found[cause] = found.get(cause, 0.0) + until - at
    return dict(sorted(found.items(), key=lambda item: -item[1]))
