"""The audit: was every prompt group used exactly once, and every row of a supervised training as often as asked?

Owns set algebra over two logs that nobody counts with while the run goes on: the trainer's evidence and the
controller's journal. It never asks Redis, a counter or a checkpoint. Promise 1 of a run holds when `AuditReport.ok`.

Of a supervised training there is the evidence alone: no controller could end a row. A position counts the rows that a
run uses, repetitions included; each must be trained in one step, and the rows at all positions together are each row
equally often, where the run's length is a whole number of epochs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from areal.ledger.evidence import Evidence, EvidenceEntry, FixedRows, Start, read
from areal.ledger.journal import JournalState, read_journal


def audit(run_dir: Path, *, finished: bool | None = None) -> "AuditReport":
    """Audits a run directory: `evidence/` and `journal/controller.jsonl`.

    `finished` says whether groups above the last trained one must be resolved too; by default the evidence tells.
    """
    journal_path = run_dir / "journal" / "controller.jsonl"
    evidence = read(run_dir / "evidence")
    if any(start.fixed is not None for start in evidence.starts):
        return examine_rows(evidence, finished=finished)
    report = examine(evidence, read_journal(journal_path), finished=finished)
    if report.trained and not journal_path.exists():
        report.problems.append("there is evidence of training, but no journal of the controller")
    return report


def examine(evidence: Evidence, journal: JournalState, *, finished: bool | None = None) -> "AuditReport":
    """The set algebra of `audit`."""
    survivors = surviving(evidence)
    report = AuditReport(problems=list(evidence.problems), trainers=len({start.fence for start in evidence.starts}))
    report.problems += [f"the journal's line {number} is damaged" for number in journal.damaged]
    report.finished = is_finished(evidence) if finished is None else finished

    steps_of: defaultdict[int, list[int]] = defaultdict(list)
    for entry in survivors:
        for group in entry.groups:
            steps_of[group.group].append(entry.step)
        ages = [(group.group, *group.ages) for group in entry.groups if group.ages]
        if ages:
            _, tokens, versions, oldest, _, bounds = zip(*ages, strict=True)
            report.ages[entry.step] = (entry.step - sum(versions) / sum(tokens), entry.step - min(oldest), max(bounds))
        late = [(group, due) for group, _, _, _, due, _ in ages if entry.step > due]
        report.problems += [f"group {g} is trained in step {entry.step}, too old after step {due}" for g, due in late]
    report.ahead = {step: ahead for step, ahead in journal.ahead if step < len(survivors)}
    trained, tombstoned = set(steps_of), set(journal.tombstones)
    partial, repeated = _samples(survivors, evidence.starts, journal)
    report.trained = len(trained)
    report.skipped = sum(len(entry.groups) for entry in survivors if entry.outcome == "skipped")
    report.steps = len({entry.step for entry in survivors})
    report.tombstoned = dict(sorted(Counter(t.reason for t in journal.tombstones.values()).items()))
    chosen = Counter(group for batch in journal.batches for group in batch)
    twice = {group for group, count in chosen.items() if count > 1}
    several = {group for group, steps in steps_of.items() if len(steps) > 1}
    report.duplicated = sorted(several | (trained & tombstoned) | repeated | twice)

    highest = max((*trained, *tombstoned, *chosen), default=-1)
    unresolved = set(range(highest + 1)) - trained - tombstoned
    passed = {group for batch in journal.batches[: report.steps] for group in batch}
    report.lost = sorted({g for g in unresolved if report.finished or g in passed} | partial)
    report.pending = len(unresolved - set(report.lost))

    _check_batches(report, survivors, evidence.starts, journal)
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


def _check_batches(
    report: "AuditReport", survivors: list[EvidenceEntry], starts: list[Start], journal: JournalState
) -> None:
    """One batch a step, no step left out: the groups that were chosen for it, less those that have ended."""
    batch_of = {start.fence: start.batch_groups for start in starts}
    begun = {start.fence: start.from_step for start in starts}
    for expected, entry in enumerate(survivors):
        if entry.fence not in begun:
            report.problems.append(f"fence {entry.fence} trained step {entry.step} without a start")
        elif entry.step < begun[entry.fence]:
            report.problems.append(f"fence {entry.fence} trained step {entry.step} below its start")
        if entry.step != expected:
            report.problems.append(f"step {entry.step} stands where step {expected} should")
        trained = {group.group for group in entry.groups}
        chosen = set(journal.batches[entry.step]) if entry.step < len(journal.batches) else set()
        left = chosen - journal.tombstones.keys()
        if len(trained) != batch_of.get(entry.fence, len(trained)) - len(chosen - left):
            report.odd_batches[entry.step] = len(trained)
        if trained != left:
            said = ", ".join(map(str, sorted(trained ^ left)))
            report.problems.append(f"step {entry.step} trained other groups than were chosen for it: {said}")


def _how_duplicated(group: int, steps: list[int], journal: JournalState) -> str:
    if group in journal.tombstones and steps:
        return f"group {group} is trained in step {steps[0]} and tombstoned ({journal.tombstones[group].reason})"
    if len(steps) > 1:
        return f"group {group} is trained in steps {', '.join(map(str, steps))}"
    chosen_for = [step for step, batch in enumerate(journal.batches) if group in batch]
    if len(chosen_for) > 1:
        return f"group {group} is chosen for steps {', '.join(map(str, chosen_for))}"
    return f"group {group} holds a sample twice"


def examine_rows(evidence: Evidence, *, finished: bool | None = None) -> "AuditReport":
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
    _check_steps(report, survivors, newest, plan)
    _check_uses(report, uses, plan)
    report.problems += [f"position {position} is trained more than once" for position in report.duplicated]
    report.problems += [f"position {position} is trained in no step" for position in report.lost]
    return report


def _check_steps(report: "AuditReport", survivors: list[EvidenceEntry], start: Start, plan: FixedRows) -> None:
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


def _check_uses(report: "AuditReport", uses: Counter[int], plan: FixedRows) -> None:
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
    ages: dict[int, tuple[float, int, int]] = field(default_factory=dict)  # of a step's tokens: mean, oldest, the bound
    ahead: dict[int, int] = field(default_factory=dict)  # by step: batches that generation might be ahead
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
