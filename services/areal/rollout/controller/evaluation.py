"""Evaluation: which policy versions are measured, which rows are in work, what came out.

Owns the schedule (every `interval` versions, version 0 at the start, the final version) and each evaluation's answers:
to each row a greedy one, and sampled ones where they are asked for. Lies outside gate and concurrency cap and has a
small cap of its own. A row's floor is the evaluated version, so a later policy may answer it, never an older one, and
none but the evaluated one where servers keep it until the end (`pinned`); the result carries the span of policies that
made it. An evaluation is named by version and weights: a trainer that starts again and publishes the same ones begins
none anew.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from areal.rollout.contract.values import BLIND, NOTHING_WITHHELD, EvaluationAnswer, FailureKind
from areal.rollout.controller.decisions import Decision, LeaseEvaluation, RecordEvaluation
from areal.rollout.controller.inputs import PublishedWeights
from areal.rollout.controller.settings import TrainPosition, retry_pause_s
from areal.values.pass_at_k import sampled_figures

log = logging.getLogger(__name__)

_MAX_TRIES = 20  # of one answer: with the pauses between them, several minutes of infrastructure faults

Unit = tuple[int, int]  # a row, and which answer to it: 0 is the greedy one


_LEAST_LOOKED = 16  # rows; of fewer, a mean says nothing
_LEARNT_ERRORS = 3.0  # standard errors above the first look
_PACE_ERRORS = 2.33  # one-sided 1 %


@dataclass(frozen=True)
class BlindLook:
    """Mean scores of the same rows with images and answers of tools, and without; the standard errors of the first and
    the gap."""

    seen: float
    blind: float
    seen_error: float
    gap_error: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> "BlindLook | None":
        """Of scores with and without; None of too few."""
        if len(pairs) < _LEAST_LOOKED:
            return None
        scores = np.asarray(pairs)
        seen, gap = scores[:, 0], scores[:, 0] - scores[:, 1]
        seen_error, gap_error = (float(values.std(ddof=1) / len(pairs) ** 0.5) for values in (seen, gap))
        return cls(float(seen.mean()), float(scores[:, 1].mean()), seen_error, gap_error)


def trains_blind(looks: Sequence[BlindLook]) -> str:
    """Why a model that learnt did so without its images and tools, in two looks in a row; empty where nothing shows it.

    It learnt: its score is above that of the first look by more than chance. They had no part in it: without
    them it has more than half of what it gained, by more than chance, too. A start that can't learn stays quiet so.
    """
    if len(looks) < 3:
        return ""
    start, now = looks[0], looks[-1]
    for look in looks[-2:]:
        gained = look.seen - start.seen
        if gained <= _LEARNT_ERRORS * math.hypot(look.seen_error, start.seen_error):
            return ""
        if look.seen - look.blind + _PACE_ERRORS * look.gap_error >= gained / 2:
            return ""
    return (
        f"the model is trained blind: its held-out score rose from {start.seen:.2f} to {now.seen:.2f}, and with grey "
        f"images and empty answers of tools it is {now.blind:.2f}: see whether answers can be guessed without them, "
        "and whether they reach the model; evaluation.blind: false goes on without this look"
    )


@dataclass(slots=True)
class EvaluationRun:
    """One evaluation. Answers are in `pending`, `in_work`, `scores` or `failed`."""

    name: str
    policy_id: str  # under which its weights were published first
    version: int
    fence: int
    rows: int
    samples: int = 0  # of each row, beside the greedy answer
    failed_are_wrong: bool = True
    blind: tuple[int, ...] = ()  # rows that are answered without images and answers of tools, too
    weights: PublishedWeights | None = None  # what servers keep until the end, where they do
    pending: list[Unit] = field(default_factory=list)
    in_work: dict[Unit, str] = field(default_factory=dict)  # → worker
    scores: dict[Unit, tuple[float, int, int]] = field(default_factory=dict)
    failed: dict[Unit, str] = field(default_factory=dict)
    tries: dict[Unit, int] = field(default_factory=dict)
    not_before: dict[Unit, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        units = [(row, sample) for row in range(self.rows) for sample in range(1 + self.samples)]
        self.pending = [*units, *((row, BLIND) for row in self.blind)][::-1]

    @property
    def whole(self) -> bool:
        """Whether every answer has an end."""
        return len(self.scores) + len(self.failed) == self.rows * (1 + self.samples) + len(self.blind)

    def look(self) -> BlindLook | None:
        """Scores with and without images and answers of tools, of rows that have both."""
        both = [
            [self.scores[unit][0] for unit in ((row, 0), (row, BLIND)) if unit in self.scores] for row in self.blind
        ]
        return BlindLook.of([(found[0], found[1]) for found in both if len(found) == 2])

    @property
    def mean(self) -> float:
        """Mean score of the greedy answers that ended so far. One without a score counts as 0, or not at all."""
        return self.mean_of(range(self.rows))

    def mean_of(self, rows: Iterable[int]) -> float:
        """The same of these rows."""
        found = [score for row in rows if (score := self._score(row, 0)) is not None]
        return sum(found) / len(found) if found else 0.0

    def sampled(self, rows: Iterable[int], ks: Iterable[int]) -> dict[str, float]:
        """avg@n and pass@k of the sampled answers to these rows; nothing where none were asked for."""
        if not self.samples:
            return {}
        found = [[self._score(row, sample) for sample in range(1, 1 + self.samples)] for row in rows]
        scores = [[score for score in of_row if score is not None] for of_row in found]
        return sampled_figures(scores, self.samples, ks)

    def failures(self, *, greedy: bool) -> int:
        """Number of failed answers."""
        return sum((sample == 0) == greedy for _, sample in self.failed if sample != BLIND)

    def _score(self, row: int, sample: int) -> float | None:
        if (row, sample) in self.failed:
            return 0.0 if self.failed_are_wrong else None
        found = self.scores.get((row, sample))
        return None if found is None else found[0]

    @property
    def oldest_version(self) -> int:
        """Of any policy that made an answer."""
        return min((oldest for _, oldest, _ in self.scores.values()), default=self.version)

    @property
    def newest_version(self) -> int:
        """Of any policy that made an answer."""
        return max((newest for _, _, newest in self.scores.values()), default=self.version)


class Evaluations:
    """All evaluations of a job. `finished` are the names of those that were recorded, also before a restart."""

    def __init__(
        self,
        position: TrainPosition,
        finished: Iterable[str],
        emit: Callable[[Decision], None],
        looks: Iterable[BlindLook] = (),
    ) -> None:
        self._position = position
        self._looks = list(looks)
        self._emit = emit
        self.finished: set[str] = set(finished)
        self.recorded: list[RecordEvaluation] = []
        self.runs: list[EvaluationRun] = []  # oldest first
        self.ended_rows = 0  # answers of all evaluations of this controller
        self._nothing_withheld = False  # in any answer that was to do without images and answers of tools
        self._missed = False  # a version was due while another was being measured
        self._last_version = max((int(name.partition(".")[0]) for name in self.finished), default=-1)

    # ---- schedule

    def published(self, weights: PublishedWeights) -> None:
        """A version is served: is it one to measure?"""
        if weights.rollback:
            self.runs = [run for run in self.runs if run.version <= weights.version and not self._pins]
            self._last_version = min(self._last_version, weights.version)
        if not self._position.settings.evaluates:
            return
        interval = self._position.settings.evaluation_interval
        start = self._last_version < 0 and self._position.settings.evaluation_at_start
        due = start or weights.version // interval > max(0, self._last_version) // interval
        if due and self.pinned is not None:
            self._missed = True  # what is served when that one ends is measured instead
        elif due:
            self._start(weights)

    @property
    def _pins(self) -> bool:
        return self._position.settings.evaluation_pins

    @property
    def pinned(self) -> PublishedWeights | None:
        """Weights that servers keep until an evaluation has ended; None when they may move on."""
        return self.runs[0].weights if self.runs and self._pins else None

    def catch_up(self, served: PublishedWeights | None) -> None:
        """Measure what is served now, where a version was due while servers kept another."""
        if self._missed and served is not None and self.pinned is None:
            self._missed = False
            self._start(served)

    def final(self, weights: PublishedWeights) -> bool:
        """The run is over with this version: measure it. True when that is done."""
        if not self._position.settings.evaluates or weights.evaluation in self.finished:
            return True
        self.runs = [run for run in self.runs if run.version <= weights.version]
        self._start(weights)
        return False

    def _start(self, weights: PublishedWeights) -> None:
        known = {run.name for run in self.runs} | self.finished
        if weights.evaluation in known:
            return
        settings = self._position.settings
        untouched = [run for run in self.runs[1:] if not run.scores and not run.in_work]
        self.runs = [run for run in self.runs if run not in untouched]
        run = EvaluationRun(
            weights.evaluation, weights.policy_id, weights.version, weights.fence, settings.evaluation_rows,
            settings.evaluation_samples, settings.evaluation_failed_are_wrong,
            () if self._nothing_withheld else settings.evaluation_blind, weights,
        )  # fmt: skip
        self.runs.append(run)
        self._last_version = max(self._last_version, weights.version)

    # ---- rows

    def lease(self, workers: list[str], newest: int | None, now: float) -> None:
        """Hand answers out, first evaluation first, spread over the workers; of pinned ones only the first."""
        if newest is None or not workers:
            return
        in_work = sum(len(run.in_work) for run in self.runs)
        for run in self.runs[:1] if self._pins else self.runs:
            if run.version > newest:
                continue
            later = []
            while run.pending and in_work < self._position.settings.evaluation_concurrent:
                unit = run.pending.pop()
                if now < run.not_before.get(unit, 0.0):
                    later.append(unit)
                    continue
                worker = workers[in_work % len(workers)]
                run.in_work[unit] = worker
                in_work += 1
                self._emit(LeaseEvaluation(worker, run.name, unit[0], run.version, unit[1]))
            run.pending.extend(later)

    def result(self, now: float, report: EvaluationAnswer) -> None:
        """An answer came back. The first of a kind counts."""
        run = next((run for run in self.runs if run.name == report.evaluation_id), None)
        unit = (report.row, report.sample)
        if run is None or report.row >= run.rows:
            return
        if report.sample > run.samples and not (report.sample == BLIND and report.row in run.blind):
            return
        if unit in run.scores or unit in run.failed:
            return
        tries = run.tries[unit] = run.tries.get(unit, 0) + 1
        if report.kind is FailureKind.INFRA and tries < _MAX_TRIES:
            if run.in_work.pop(unit, None) is not None:
                run.pending.append(unit)
            run.not_before[unit] = now + retry_pause_s(tries - 1)
            return
        run.in_work.pop(unit, None)
        if unit in run.pending:
            run.pending.remove(unit)
        self.ended_rows += 1
        if report.kind is not FailureKind.NONE:
            if report.detail != NOTHING_WITHHELD:
                log.warning("evaluation %s row %d has no score: %s", run.policy_id, report.row, report.detail)
            run.failed[unit] = report.detail
        else:
            run.scores[unit] = (report.score, report.oldest_version, report.newest_version)
        if run.whole:
            self._record(run)

    def _record(self, run: EvaluationRun) -> None:
        self.runs.remove(run)
        self.finished.add(run.name)
        settings, failed = self._position.settings, run.failures(greedy=True)
        sets: dict[str, list[int]] = {}
        for row, name in enumerate(settings.evaluation_sets):
            sets.setdefault(name, []).append(row)
        ks, look = settings.evaluation_pass_at, run.look()
        self._looks += [] if look is None else [look]
        self._nothing_withheld |= all(run.failed.get((row, BLIND)) == NOTHING_WITHHELD for row in run.blind)
        record = RecordEvaluation(
            run.name,
            run.policy_id,
            run.version,
            run.rows - failed,
            run.mean,
            run.oldest_version,
            run.newest_version,
            failed,
            run.failures(greedy=False),
            {**run.sampled(range(run.rows), ks), **({} if look is None else asdict(look))},
            {
                name: {"rows": len(rows), "mean": run.mean_of(rows), **run.sampled(rows, ks)}
                for name, rows in sets.items()
            },
        )
        self.recorded.append(record)
        self._emit(record)

    @property
    def trains_blind(self) -> str:
        """Why the run must not go on; empty where nothing shows that it learns without images and tools."""
        return trains_blind(self._looks) if self._position.settings.evaluation_blind else ""

    def orphan(self, worker: str) -> None:
        """A worker lost its answers: others make them."""
        for run in self.runs:
            lost = [unit for unit, holder in run.in_work.items() if holder == worker]
            for unit in lost:
                del run.in_work[unit]
            run.pending.extend(lost)
