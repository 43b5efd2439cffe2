"""Queueing model of a run's pace: what a step takes as it is, and what it would take after one change. Pure.

One queue feeds another: generation works groups off at the rate at which it did, in admission order, none faster than
its longest answer is sampled by a server that is not crowded; the trainer trains a batch when its last group is there
and it is free. The gate couples them back: a group of step s begins when version s − η is on the servers. All constants
are the run's own (`Constants`). Every process is taken to have hardware of its own, as on a cluster: on one busy
machine more servers bring less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from areal_view.why.bubbles import EpisodeTimes, Gate, StepTimes, covered, published, union

_STEPS = 60  # that are played, after as many to warm up
_FASTER = 0.75


@dataclass(frozen=True)
class Constants:
    """What a run's pace is made of."""

    batch: int  # groups a step
    staleness: int
    max_concurrent: int  # groups
    servers: int
    generation_s: float  # of one busy server, a group
    latencies_s: Sequence[float]  # of groups on a server that is not crowded: their longest answer, with its scoring
    work_s: Sequence[float]  # of the trainer in each step, waiting left out
    swap_s: float  # from a publication to the first answer of that version
    hand_over_s: float  # from a batch's last score to its training
    evaluation_s: float  # of one server, a step


@dataclass(frozen=True)
class PaceGain:
    """One change, and by how much more steps an hour come."""

    what: str
    gain: float


@dataclass(frozen=True)
class Forecast:
    """A run's pace by the model, beside what was measured, and what changes would bring."""

    measured_s: float  # a step
    modelled_s: float
    changes: Sequence[PaceGain]


def constants_of(
    rows: Sequence[StepTimes], episodes: Sequence[EpisodeTimes], gate: Gate, *, max_concurrent: int, servers: int
) -> Constants:
    """The constants of the steps in `rows`."""
    began, ended = rows[0].ended - rows[0].wall_s, rows[-1].ended
    groups: dict[int, list[EpisodeTimes]] = {}
    for one in episodes:
        if one.group is not None and one.generated:
            groups.setdefault(one.group, []).append(one)
    named = sorted({one.server for one in episodes})
    busy = evaluating = 0.0
    for name in named:
        own = union(s for one in episodes if one.group is not None and one.server == name for s in one.generated)
        others = union(s for one in episodes if one.group is None and one.server == name for s in one.generated)
        busy += covered(own, began, ended)
        evaluating += covered(union([*own, *others]), began, ended) - covered(own, began, ended)
    lasted = {group: _lasted(own) for group, own in groups.items()}
    return Constants(
        batch=gate.batch,
        staleness=gate.staleness,
        max_concurrent=max_concurrent,
        servers=servers,
        generation_s=busy / (len(rows) * gate.batch),
        latencies_s=_latencies_s(groups),
        work_s=[max(0.0, row.wall_s - row.seconds.get("wait", 0.0)) for row in rows],
        swap_s=_swap_s(rows, episodes),
        hand_over_s=_hand_over_s(rows, lasted, gate),
        evaluation_s=evaluating / len(rows),
    )


def _lasted(own: Sequence[EpisodeTimes]) -> tuple[float, float]:
    spans = [span for one in own for span in (*one.generated, *one.scored)]
    return min(span.began for span in spans), max(span.ended for span in spans)


def _latencies_s(groups: Mapping[int, Sequence[EpisodeTimes]]) -> list[float]:
    """How long each group takes by itself. Of the times a token took, the lower quartile is sampling: what is above it
    is the company of other answers, which the model has by itself."""
    paces = sorted(
        sum(span.seconds for span in one.generated) / one.tokens for own in groups.values() for one in own if one.tokens
    )
    pace = paces[len(paces) // 4] if paces else 0.0
    found = []
    for own in groups.values():
        alone = []
        for one in own:
            first, last = _lasted([one])
            sampled = sum(span.seconds for span in one.generated)
            alone.append(last - first - sampled + min(sampled, pace * one.tokens))
        found.append(max(alone))
    return found or [0.0]


def _swap_s(rows: Sequence[StepTimes], episodes: Sequence[EpisodeTimes]) -> float:
    """The lower quartile: a version that nobody waited for is first used late."""
    first: dict[int, float] = {}
    for one in episodes:
        for span in one.generated[:1]:
            first[one.version] = min(span.began, first.get(one.version, span.began))
    late = sorted(max(0.0, first[v] - at) for v, at in published(rows).items() if v in first)
    return late[len(late) // 4] if late else 0.0


def _hand_over_s(rows: Sequence[StepTimes], lasted: dict[int, tuple[float, float]], gate: Gate) -> float:
    """By the steps that waited. Steps take groups in the order of admission."""
    found = []
    for row in rows:
        last = [lasted[g][1] for g in range(row.step * gate.batch, (row.step + 1) * gate.batch) if g in lasted]
        trained = sum(row.seconds.get(phase, 0.0) for phase in ("take", "prox", "train"))
        if last and row.seconds.get("wait", 0.0) > 0:
            found.append(max(0.0, row.ended - trained - max(last)))
    return median(found) if found else 0.0


def step_s(c: Constants) -> float:
    """Seconds a step of the model, once it runs evenly."""
    steps = 2 * _STEPS
    served = [0.0] * (steps + 1)  # when each version is on the servers
    done: list[float] = []  # of groups, by admission
    ends = [0.0] * steps
    free = trainer = 0.0  # when generation and trainer are free
    ready_in_order = 0.0
    for step in range(steps):
        free = max(free, served[max(0, step - c.staleness)])
        free += c.evaluation_s / c.servers
        for group in range(step * c.batch, (step + 1) * c.batch):
            begun = served[max(0, step - c.staleness)]
            if group >= c.max_concurrent:
                begun = max(begun, done[group - c.max_concurrent])
            free = max(free, begun) + c.generation_s / c.servers
            done.append(max(free, begun + c.latencies_s[group % len(c.latencies_s)]))
            ready_in_order = max(ready_in_order, done[-1])
        trainer = max(trainer, ready_in_order + c.hand_over_s) + c.work_s[step % len(c.work_s)]
        ends[step] = trainer
        served[step + 1] = trainer + c.swap_s
    return (ends[-1] - ends[steps - _STEPS - 1]) / _STEPS


def forecast(c: Constants, measured_s: float) -> Forecast:
    """Forecast of what each change brings, the best first."""
    now = step_s(c)
    more = replace(c, staleness=max(1, 2 * c.staleness), max_concurrent=max(c.max_concurrent, _flight(c, 2)))
    tried = [
        (f"servers {c.servers} → {c.servers + 1}", replace(c, servers=c.servers + 1)),
        (f"maxStaleness {c.staleness} → {more.staleness}", more),
        (f"maxConcurrentRollouts {c.max_concurrent} → {2 * c.max_concurrent}",
         replace(c, max_concurrent=2 * c.max_concurrent)),
        ("a trainer that is a third faster", replace(c, work_s=[_FASTER * one for one in c.work_s])),
    ]  # fmt: skip
    if c.servers > 1:
        tried.append((f"servers {c.servers} → {2 * c.servers}", replace(c, servers=2 * c.servers)))
    if c.staleness:
        tried.append((f"maxStaleness {c.staleness} → 0", replace(c, staleness=0)))
    if c.evaluation_s:
        tried.append(("no evaluations", replace(c, evaluation_s=0.0)))
    changes = [PaceGain(what, now / step_s(changed) - 1.0) for what, changed in tried]
    return Forecast(measured_s, now, sorted(changes, key=lambda one: -one.gain))


def _flight(c: Constants, times: int) -> int:
    """Groups that η times as large lets be in flight."""
    return c.batch * (max(1, times * c.staleness) + 1)
