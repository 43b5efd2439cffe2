"""The audit's answer, and which evidence speaks: what audits of every kind of training have in common."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from areal.ledger.evidence import Evidence, EvidenceEntry


@dataclass(slots=True)
class AuditReport:
    """What became of every group. Lists are sorted group numbers."""

    trained: int = 0  # groups
    skipped: int = 0  # groups of these whose update was not finite
    steps: int = 0
    tombstoned: dict[str, int] = field(default_factory=dict)  # by reason
    lost: list[int] = field(default_factory=list)
    duplicated: list[int] = field(default_factory=list)
    pending: int = 0  # in flight: above everything trained, of a run that has not finished
    odd_batches: dict[int, int] = field(default_factory=dict)  # step → groups, where that is not B
    trainers: int = 0
    finished: bool = False
    used: tuple[int, int] | None = None  # of a supervised training: the fewest and the most uses of a row
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is lost, nothing was used twice, and the logs themselves are sound."""
        return not (self.lost or self.duplicated or self.odd_batches or self.problems)

    def to_json(self) -> dict[str, Any]:
        """For `--json` and the run's summary."""
        return {"ok": self.ok, **asdict(self), "odd_batches": {str(s): n for s, n in self.odd_batches.items()}}


def surviving(evidence: Evidence) -> list[EvidenceEntry]:
    """Entries of the lineage that the run's model comes from, in order of steps.

    An entry (s, f) survives unless a later fence started at or below s: that trainer went back before it.
    """
    survivors = [
        entry
        for entry in evidence.entries
        if not any(start.fence > entry.fence and start.from_step <= entry.step for start in evidence.starts)
    ]
    return sorted(survivors, key=lambda entry: (entry.step, entry.fence))


def is_finished(evidence: Evidence) -> bool:
    """Whether the newest trainer reached the end of the run."""
    newest = max((start.fence for start in evidence.starts), default=0)
    return any(fence == newest for fence, _ in evidence.finished)
