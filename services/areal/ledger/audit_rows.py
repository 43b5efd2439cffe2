"""The audit of a supervised training: was every row of the dataset used exactly as often as asked?

Set algebra over the trainer's evidence alone: there is no controller whose journal could end a row. A position counts
the rows that a run uses, repetitions included; each must be trained in one step, and the rows at all positions together
are each row equally often, where the run's length is a whole number of epochs.
"""

from __future__ import annotations

from collections import Counter

from areal.ledger.audit_report import AuditReport, is_finished, surviving
from areal.ledger.evidence import Evidence, EvidenceEntry, FixedRows, Start


def examine(evidence: Evidence, *, finished: bool | None = None) -> AuditReport:
    """The audit of one run's evidence; `finished` as the evidence says unless given."""
    survivors = surviving(evidence)
    report = AuditReport(problems=list(evidence.problems), trainers=len({start.fence for start in evidence.starts}))
    report.finished = is_finished(evidence) if finished is None else finished
    newest = max(evidence.starts, key=lambda start: start.fence)
    plan = newest.fixed
    if plan is None:
        report.problems.append(f"fence {newest.fence} says nothing of rows, an earlier trainer did")
        return report
    steps_of: dict[int, list[int]] = {}
    uses: Counter[int] = Counter()
    for entry in survivors:
        for group in entry.groups:
            steps_of.setdefault(group.group, []).append(entry.step)
            uses.update(row for row, _ in group.samples)
    report.trained = len(steps_of)
    report.skipped = sum(len(entry.groups) for entry in survivors if entry.outcome == "skipped")
    report.steps = len({entry.step for entry in survivors})
    report.duplicated = sorted(position for position, steps in steps_of.items() if len(steps) > 1)
    end = plan.positions if report.finished else max(steps_of, default=-1) + 1
    report.lost = sorted(set(range(end)) - steps_of.keys())
    report.pending = plan.positions - end
    _check_batches(report, survivors, newest, plan)
    _check_uses(report, uses, plan)
    report.problems += [f"position {position} is trained more than once" for position in report.duplicated]
    report.problems += [f"position {position} is trained in no step" for position in report.lost]
    return report


def _check_batches(report: AuditReport, survivors: list[EvidenceEntry], start: Start, plan: FixedRows) -> None:
    """Every step has its own positions, and no step is left out."""
    for expected, entry in enumerate(survivors):
        if entry.step != expected:
            report.problems.append(f"step {entry.step} stands where step {expected} should")
        first = entry.step * start.batch_groups
        span = range(first, min(first + start.batch_groups, plan.positions))
        if len(entry.groups) != len(span):
            report.odd_batches[entry.step] = len(entry.groups)
        elif [group.group for group in entry.groups] != list(span):
            report.problems.append(f"step {entry.step} trained other positions than {span.start} to {span.stop - 1}")


def _check_uses(report: AuditReport, uses: Counter[int], plan: FixedRows) -> None:
    """No row of a source is used twice more than another one; in whole epochs of it, all are used equally often."""
    if not uses:
        return
    counts = [uses[row] for row in range(plan.rows)]
    report.used = (min(counts), max(counts))
    first, known = 0, sum(counts) == sum(uses.values())
    for rows in plan.sources or (plan.rows,):
        own = counts[first : first + rows]
        first += rows
        fewest, rest = divmod(sum(own), rows)
        asked = (fewest, fewest + (rest > 0))
        if (min(own), max(own)) != asked or not known:
            times = f"{asked[0]}" if asked[0] == asked[1] else f"{asked[0]} or {asked[1]}"
            said = f"rows are used {min(own)} to {max(own)} times, where {times} were asked of each"
            report.problems.append(said)
