"""Report of an evaluation: counts, pass@k, and every task that failed or could not be judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from areal.values.pass_at_k import mean_pass_at_k

from areal_judge.evaluate.attempts import AttemptOutcome
from areal_judge.judge.values import Status


@dataclass(frozen=True)
class Report:
    """Outcomes of an evaluation of `tasks` tasks."""

    outcomes: Sequence[AttemptOutcome]
    tasks: int
    wall_s: float

    @property
    def total(self) -> int:
        return len(self.outcomes)

    @property
    def passed(self) -> int:
        return sum(outcome.passed for outcome in self.outcomes)

    @property
    def unjudged(self) -> list[AttemptOutcome]:
        return [outcome for outcome in self.outcomes if not outcome.judged]

    @property
    def failures(self) -> list[AttemptOutcome]:
        """Those that were judged and did not pass."""
        return [outcome for outcome in self.outcomes if outcome.judged and not outcome.passed]

    @property
    def attempted(self) -> int:
        return len({outcome.attempt.task_id for outcome in self.outcomes})

    def kinds(self) -> dict[str, dict[str, int]]:
        """Counts by kind of attempt."""
        found: dict[str, dict[str, int]] = {}
        for outcome in self.outcomes:
            counts = found.setdefault(outcome.attempt.kind, {"passed": 0, "total": 0})
            counts["passed"] += outcome.passed
            counts["total"] += 1
        return found

    def pass_at(self, k: int) -> float | None:
        """The estimate over attempted tasks, from judged samples; None with too few of them."""
        samples: Counter[str] = Counter()
        right: Counter[str] = Counter()
        for outcome in self.outcomes:
            samples[outcome.attempt.task_id] += outcome.judged
            right[outcome.attempt.task_id] += outcome.passed
        return mean_pass_at_k(((count, right[task_id]) for task_id, count in samples.items()), k)

    def to_json(self, ks: Iterable[int] = (1,)) -> dict[str, Any]:
        """One JSON object."""
        judged = [outcome.judgement for outcome in self.outcomes if outcome.judged]
        return {
            "passed": self.passed,
            "total": self.total,
            "tasks": self.tasks,
            "attempted": self.attempted,
            "unjudged": len(self.unjudged),
            **{f"pass@{k}": value for k in ks if (value := self.pass_at(k)) is not None},
            "kinds": self.kinds(),
            "statuses": dict(Counter(outcome.judgement.status.value for outcome in self.outcomes)),
            "flags": dict(Counter(flag.value for judgement in judged for flag in sorted(judgement.flags))),
            "tier": min(judgement.tier for judgement in judged).name if judged else None,
            "integrity": min(judgement.integrity for judgement in judged).name if judged else None,
            "wall_s": round(self.wall_s, 3),
            "failures": [_line(outcome) for outcome in self.failures],
            "not_judged": [_line(outcome) for outcome in self.unjudged],
        }


def _line(outcome: AttemptOutcome) -> dict[str, Any]:
    judgement = outcome.judgement
    return {
        "task_id": outcome.attempt.task_id,
        "kind": outcome.attempt.kind,
        "sample": outcome.attempt.sample,
        "status": judgement.status.value,
        "message": why(outcome)[:300],
        "flags": sorted(flag.value for flag in judgement.flags),
    }


def why(outcome: AttemptOutcome) -> str:
    """One line: what the first case that failed did, else what the judge said."""
    for case in outcome.judgement.cases:
        if case.status is Status.PASSED:
            continue
        if case.detail.strip():
            return case.detail.strip().splitlines()[0]
        if case.stderr_head.strip():
            return case.stderr_head.strip().splitlines()[-1]  # where Python says what was raised
    return outcome.judgement.message.strip().partition("\n")[0]
