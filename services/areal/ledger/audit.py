"""The audit: was every prompt group used exactly once?

Owns set algebra over two logs that nobody counts with while the run goes on: the trainer's evidence and the
controller's journal. It never asks Redis, a counter or a checkpoint. Promise 1 of a run holds when `AuditReport.ok`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from areal.ledger import audit_rows
from areal.ledger.audit_report import AuditReport, is_finished, surviving
from areal.ledger.evidence import Evidence, EvidenceEntry, Start, read
from areal.ledger.journal import JournalState, read_journal


def audit(run_dir: Path, *, finished: bool | None = None) -> AuditReport:
    """Audits a run directory: `evidence/` and `journal/controller.jsonl`.

    `finished` says whether groups above the last trained one must be resolved too; by default the evidence tells.
    """
    journal_path = run_dir / "journal" / "controller.jsonl"
    evidence = read(run_dir / "evidence")
    if any(start.fixed is not None for start in evidence.starts):
        return audit_rows.examine(evidence, finished=finished)
    report = examine(evidence, read_journal(journal_path), finished=finished)
    if report.trained and not journal_path.exists():
        report.problems.append("there is evidence of training, but no journal of the controller")
    return report


def examine(evidence: Evidence, journal: JournalState, *, finished: bool | None = None) -> AuditReport:
    """The set algebra of `audit`."""
    survivors = surviving(evidence)
    report = AuditReport(problems=list(evidence.problems), trainers=len({start.fence for start in evidence.starts}))
    report.problems += [f"the journal's line {number} is damaged" for number in journal.damaged]
    report.finished = is_finished(evidence) if finished is None else finished

    steps_of: defaultdict[int, list[int]] = defaultdict(list)
    for entry in survivors:
        for group in entry.groups:
            steps_of[group.group].append(entry.step)
    trained, tombstoned = set(steps_of), set(journal.tombstones)
    partial, repeated = _samples(survivors, evidence.starts, journal)
    report.trained = len(trained)
    report.skipped = sum(len(entry.groups) for entry in survivors if entry.outcome == "skipped")
    report.steps = len({entry.step for entry in survivors})
    report.tombstoned = dict(sorted(Counter(t.reason for t in journal.tombstones.values()).items()))
    report.duplicated = sorted({g for g, s in steps_of.items() if len(s) > 1} | (trained & tombstoned) | repeated)

    highest_trained = max(trained, default=-1)
    highest = max(highest_trained, max(tombstoned, default=-1))
    unresolved = set(range(highest + 1)) - trained - tombstoned
    report.lost = sorted({g for g in unresolved if report.finished or g < highest_trained} | partial)
    report.pending = len(unresolved - set(report.lost))

    _check_batches(report, survivors, evidence.starts)
    report.problems += [_how_duplicated(group, steps_of[group], journal) for group in report.duplicated]
    report.problems += [f"group {group} is neither whole in a step nor tombstoned" for group in report.lost]
    return report


def _samples(
    entries: Iterable[EvidenceEntry], starts: Iterable[Start], journal: JournalState
) -> tuple[set[int], set[int]]:
    """Groups that were trained without all their samples, and groups with a sample twice."""
    size_of = {start.fence: start.group_size for start in starts}
    partial: set[int] = set()
    repeated: set[int] = set()
    for entry in entries:
        for group in entry.groups:
            indices = [index for index, _ in group.samples]
            whole = set(journal.short.get(group.group, range(size_of.get(entry.fence, 0))))
            if len(set(indices)) != len(indices):
                repeated.add(group.group)
            if set(indices) != whole and set(indices) != set(range(size_of.get(entry.fence, 0))):
                partial.add(group.group)
    return partial, repeated


def _check_batches(report: AuditReport, survivors: list[EvidenceEntry], starts: list[Start]) -> None:
    """Whole batches, one a step, no step left out, groups in admission order."""
    batch_of = {start.fence: start.batch_groups for start in starts}
    begun = {start.fence: start.from_step for start in starts}
    above = -1
    for expected, entry in enumerate(survivors):
        if entry.fence not in begun:
            report.problems.append(f"fence {entry.fence} trained step {entry.step} without a start")
        elif entry.step < begun[entry.fence]:
            report.problems.append(f"fence {entry.fence} trained step {entry.step} below its start")
        if entry.step != expected:
            report.problems.append(f"step {entry.step} stands where step {expected} should")
        if len(entry.groups) != batch_of.get(entry.fence, len(entry.groups)):
            report.odd_batches[entry.step] = len(entry.groups)
        for group in entry.groups:
            if group.group <= above:
                report.problems.append(f"step {entry.step} trained group {group.group} after group {above}")
            above = max(above, group.group)


def _how_duplicated(group: int, steps: list[int], journal: JournalState) -> str:
    if group in journal.tombstones and steps:
        return f"group {group} is trained in step {steps[0]} and tombstoned ({journal.tombstones[group].reason})"
    if len(steps) > 1:
        return f"group {group} is trained in steps {', '.join(map(str, steps))}"
    return f"group {group} holds a sample twice"
