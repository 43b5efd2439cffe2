"""Evaluation: which policy versions are measured, which rows are in work, what came out.

Owns the schedule (every `interval` versions, version 0 at the start, the final version) and each evaluation's rows.
Lies outside gate and concurrency cap and has a small cap of its own. A row's floor is the evaluated version, so a later
policy may answer it, never an older one; the result carries the span of policies that made it. An evaluation is named
by version and weights: a trainer that starts again and publishes the same ones begins none anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from areal.rollout.contract.values import Evaluated, FailureKind
from areal.rollout.controller.decisions import Decision, LeaseEvaluation, RecordEvaluation
from areal.rollout.controller.position import Position
from areal.rollout.controller.reports import Weights
from areal.rollout.controller.settings import retry_pause_s

log = logging.getLogger(__name__)

_MAX_TRIES = 20  # of one row: with the pauses between them, several minutes of infrastructure faults


@dataclass(slots=True)
class Run:
    """One evaluation. Rows are in `pending`, `in_work`, `scores` or `failed`."""

    name: str
    policy_id: str  # under which its weights were published first
    version: int
    fence: int
    rows: int
    pending: list[int]
    in_work: dict[int, str] = field(default_factory=dict)  # row → worker
    scores: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    not_before: dict[int, float] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether every row has an end."""
        return len(self.scores) + len(self.failed) == self.rows

    @property
    def mean(self) -> float:
        """Mean score of the rows that ended so far. A row without a score counts as 0: failing must not pay."""
        ended = len(self.scores) + len(self.failed)
        return sum(score for score, _, _ in self.scores.values()) / ended if ended else 0.0

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

    def __init__(self, position: Position, finished: Iterable[str], emit: Callable[[Decision], None]) -> None:
        self._position = position
        self._emit = emit
        self.finished: set[str] = set(finished)
        self.recorded: list[RecordEvaluation] = []
        self.runs: list[Run] = []  # oldest first
        self.ended_rows = 0  # of all evaluations of this controller
        self._last_version = max((int(name.partition(".")[0]) for name in self.finished), default=-1)

    # ---- schedule

    def published(self, weights: Weights) -> None:
        """A version is served: is it one to measure?"""
        if weights.rollback:
            self.runs = [run for run in self.runs if run.version <= weights.version]
            self._last_version = min(self._last_version, weights.version)
        if not self._position.settings.evaluates:
            return
        interval = self._position.settings.evaluation_interval
        start = self._last_version < 0 and self._position.settings.evaluation_at_start
        due = start or weights.version // interval > max(0, self._last_version) // interval
        if due:
            self._start(weights)

    def final(self, weights: Weights) -> bool:
        """The run is over with this version: measure it. True when that is done."""
        if not self._position.settings.evaluates or weights.evaluation in self.finished:
            return True
        self.runs = [run for run in self.runs if run.version <= weights.version]
        self._start(weights)
        return False

    def _start(self, weights: Weights) -> None:
        known = {run.name for run in self.runs} | self.finished
        if weights.evaluation in known:
            return
        rows = self._position.settings.evaluation_rows
        untouched = [run for run in self.runs[1:] if not run.scores and not run.in_work]
        self.runs = [run for run in self.runs if run not in untouched]
        run = Run(weights.evaluation, weights.policy_id, weights.version, weights.fence, rows, list(range(rows))[::-1])
        self.runs.append(run)
        self._last_version = max(self._last_version, weights.version)

    # ---- rows

    def lease(self, workers: list[str], newest: int | None, now: float) -> None:
        """Hand rows out, first evaluation first, spread over the workers."""
        if newest is None or not workers:
            return
        in_work = sum(len(run.in_work) for run in self.runs)
        for run in self.runs:
            if run.version > newest:
                continue
            later = []
            while run.pending and in_work < self._position.settings.evaluation_concurrent:
                row = run.pending.pop()
                if now < run.not_before.get(row, 0.0):
                    later.append(row)
                    continue
                worker = workers[in_work % len(workers)]
                run.in_work[row] = worker
                in_work += 1
                self._emit(LeaseEvaluation(worker, run.name, row, run.version))
            run.pending.extend(later)

    def result(self, now: float, report: Evaluated) -> None:
        """A row came back. The first answer counts."""
        run = next((run for run in self.runs if run.name == report.evaluation_id), None)
        if run is None or report.row >= run.rows or report.row in run.scores or report.row in run.failed:
            return
        tries = run.tries[report.row] = run.tries.get(report.row, 0) + 1
        if report.kind is FailureKind.INFRA and tries < _MAX_TRIES:
            if run.in_work.pop(report.row, None) is not None:
                run.pending.append(report.row)
            run.not_before[report.row] = now + retry_pause_s(tries - 1)
            return
        run.in_work.pop(report.row, None)
        if report.row in run.pending:
            run.pending.remove(report.row)
        self.ended_rows += 1
        if report.kind is not FailureKind.NONE:
            log.warning("evaluation %s row %d has no score: %s", run.policy_id, report.row, report.detail)
            run.failed[report.row] = report.detail
        else:
            run.scores[report.row] = (report.score, report.oldest_version, report.newest_version)
        if run.whole:
            self._record(run)

    def _record(self, run: Run) -> None:
        self.runs.remove(run)
        self.finished.add(run.name)
        record = RecordEvaluation(
            run.name,
            run.policy_id,
            run.version,
            len(run.scores),
            run.mean,
            run.oldest_version,
            run.newest_version,
            len(run.failed),
        )
        self.recorded.append(record)
        self._emit(record)

    def orphan(self, worker: str) -> None:
        """A worker lost its rows: others get them."""
        for run in self.runs:
            lost = [row for row, holder in run.in_work.items() if holder == worker]
            for row in lost:
                del run.in_work[row]
            run.pending.extend(lost)
