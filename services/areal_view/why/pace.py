"""Queueing model of a run's pace: what a step takes as it is, and what it would take after one change. Pure.

One queue feeds another: generation works groups off at the rate at which it did, in admission order, none faster than
its longest answer is sampled by a server that is not crowded; the trainer trains a batch when it is chosen and it is
free. Between them stand the ledger's own gate, grants and choice, in the order that the run has. All constants are the
run's own (`Constants`). Every process is taken to have hardware of its own, as on a cluster: on one busy machine more
servers bring less.
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from areal.ledger.gate import GatePolicy, WaitingGroup, Window, choose, in_time, room

from areal_view.why.bubbles import EpisodeTimes, Gate, StepTimes, covered, published, union

_STEPS, _GROUPS = 60, 2_000  # that are played at most, after as many to warm up
_ENDLESS = 10**9  # steps: the end of a run is not played
_FASTER = 0.75


@dataclass(frozen=True)
class Constants:
    """What a run's pace is made of."""

    batch: int  # groups a step
    ahead: int  # batches
    staleness: int  # versions, the bound
    admission_order: bool  # else by deadline
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
    bound_s: float  # a step that no order gets below at the run's maxStaleness
    bound: str  # in words, with the numbers that it comes from


def constants_of(
    rows: Sequence[StepTimes], episodes: Sequence[EpisodeTimes], gate: Gate, batches: Sequence[Sequence[int]],
    *, max_concurrent: int, servers: int,
) -> Constants:  # fmt: skip
    """The constants of the steps in `rows`. `batches`: the groups of each step of the run."""
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
    ended_at = {group: _lasted(own)[1] for group, own in groups.items()}
    return Constants(
        gate.batch, gate.ahead, gate.staleness, gate.admission_order, max_concurrent, servers,
        generation_s=busy / (len(rows) * gate.batch), latencies_s=_latencies_s(groups),
        work_s=[max(0.0, row.wall_s - row.seconds.get("wait", 0.0)) for row in rows],
        swap_s=_swap_s(rows, episodes), hand_over_s=_hand_over_s(rows, ended_at, batches),
        evaluation_s=evaluating / len(rows),
    )  # fmt: skip


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


def _hand_over_s(rows: Sequence[StepTimes], ended: Mapping[int, float], batches: Sequence[Sequence[int]]) -> float:
    """By the steps that waited."""
    found = []
    for row in rows:
        last = [ended[group] for batch in batches[row.step : row.step + 1] for group in batch if group in ended]
        trained = sum(row.seconds.get(phase, 0.0) for phase in ("take", "prox", "train"))
        if last and row.seconds.get("wait", 0.0) > 0:
            found.append(max(0.0, row.ended - trained - max(last)))
    return median(found) if found else 0.0


@dataclass(frozen=True)
class Pace:
    """A run of the model, once it runs evenly."""

    step_s: float
    age: float  # versions, the mean over groups of their oldest token's


def step_s(c: Constants) -> float:
    """Seconds a step of the model."""
    return play(c).step_s


def play(c: Constants) -> Pace:
    """Pace of the model. In admission order each group is due at its turn."""
    steps = max(12, min(_STEPS, _GROUPS // c.batch))
    policy = GatePolicy(c.batch, c.ahead, _ENDLESS, c.max_concurrent)
    events: list[tuple[float, int, WaitingGroup | None]] = [(0.0, -1, None)]  # a group is complete, or time goes on
    waiting: dict[int, WaitingGroup] = {}  # in no batch
    due, late = Counter[int](), Counter[int]()  # of these, and of those that aren't complete
    ends, served = [0.0], [0.0]  # when each version was trained, and on the servers
    generation, begins, admitted, newest = 0.0, 0.0, 0, 0  # when it is free, when the newest batch is taken, counts
    floors, ages = dict[int, int](), list[int]()  # the version that began each group; how old it was when trained
    while len(ends) <= 2 * steps:
        now, _, group = heapq.heappop(events)
        if group is not None:
            _take_out(late, group.due)
            waiting[group.index] = replace(group, complete=True)
        while newest + 1 < len(served) and served[newest + 1] <= now:
            newest += 1
            generation = max(generation, now) + c.evaluation_s / c.servers
        step = len(ends) - 1  # asking costs the more the more groups wait: not while the answer can only be no
        ready = len(waiting) - late.total() >= c.batch and in_time(late, step + 1, c.batch)
        if now >= begins and ready and (batch := choose(waiting.values(), step, c.batch)) is not None:
            for index in batch:
                _take_out(due, waiting.pop(index).due)
            ages.extend(step - floors.pop(index) for index in batch)
            begins = max(ends[-1], now + c.hand_over_s)
            ends.append(begins + c.work_s[step % len(c.work_s)])
            served.append(ends[-1] + c.swap_s)
            heapq.heappush(events, (begins, -1, None))
            heapq.heappush(events, (served[-1], -1, None))
        while room(Window(len(ends) - 1, len(waiting), late.total(), newest), policy):
            last = admitted // c.batch if c.admission_order else newest + c.staleness
            if not in_time(due + Counter([last]), len(ends) - 1, c.batch):
                break
            generation = max(generation, now) + c.generation_s / c.servers
            floors[admitted] = newest
            alone = now + c.latencies_s[admitted % len(c.latencies_s)]
            waiting[admitted] = WaitingGroup(admitted, last, complete=False)
            heapq.heappush(events, (max(generation, alone), admitted, waiting[admitted]))
            due[last] += 1
            late[last] += 1
            admitted += 1
    return Pace((ends[-1] - ends[-steps - 1]) / steps, fmean(ages[-steps * c.batch :]))


def _take_out(counts: Counter[int], due: int) -> None:
    """A step that nothing is due at has no entry: one that is past would break Hall's condition."""
    counts[due] -= 1
    if not counts[due]:
        del counts[due]


def forecast(c: Constants, measured_s: float) -> Forecast:
    """Forecast of what each change brings, the best first."""
    now = step_s(c)
    tried = [
        (f"servers {c.servers} → {c.servers + 1}", replace(c, servers=c.servers + 1)),
        (f"maxConcurrentRollouts {c.max_concurrent} → {2 * c.max_concurrent}",
         replace(c, max_concurrent=2 * c.max_concurrent)),
        ("a trainer that is a third faster", replace(c, work_s=[_FASTER * one for one in c.work_s])),
    ]  # fmt: skip
    if c.servers > 1:
        tried.append((f"servers {c.servers} → {2 * c.servers}", replace(c, servers=2 * c.servers)))
    bound, lead = f"maxStaleness {c.staleness} → ", max(1, 2 * c.ahead)
    further = replace(c, ahead=lead, staleness=max(lead, c.staleness))
    further = replace(further, max_concurrent=max(c.max_concurrent, c.batch * (lead + 1)))
    named = [] if c.admission_order or not c.staleness else [f"ahead {c.ahead} → {lead}"]
    raised = [f"{bound}{further.staleness}"] if further.staleness > c.staleness else []
    tried.append((", ".join([*named, *raised]), further))
    if named:
        tried.append((f"{bound}{2 * c.staleness}, ahead {c.ahead}", replace(c, staleness=2 * c.staleness)))
    if c.staleness:
        tried.append((f"{bound}0", replace(c, staleness=0, ahead=0)))
    if c.evaluation_s:
        tried.append(("no evaluations", replace(c, evaluation_s=0.0)))
    changes = [PaceGain(what, now / step_s(changed) - 1.0) for what, changed in tried]
    # An answer begins no earlier than its version is served, and the version that it makes is served H + 1 steps later.
    alone, after = max(c.latencies_s), c.hand_over_s + min(c.work_s) + c.swap_s
    bound_s = (alone + after) / (c.staleness + 1)
    told = (
        f"at maxStaleness {c.staleness} no order takes less than {bound_s:.2f} s a step while an answer as long as the "
        f"longest is in each {f'{c.staleness + 1} batches' if c.staleness else 'batch'}: {alone:.2f} s alone and "
        f"{after:.2f} s until its weights are served, over {c.staleness + 1}; a larger maxStaleness, shorter answers "
        "or a faster server move that, ahead does not"
    )
    return Forecast(measured_s, now, sorted(changes, key=lambda one: -one.gain), bound_s, told)
