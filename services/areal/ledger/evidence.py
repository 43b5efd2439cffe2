"""Evidence: what the trainer says it trained, written when the gradient is taken.

Owns one file a fence, `<run>/evidence/trainer-<fence>.jsonl`, so that two trainers never share one. The audit believes
these files and the controller's journal, nothing else. Also holds the attempts of each step, which decide about poison.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from areal.errors import ExitCode
from areal.ledger.lines import LineWriter, Record, read_lines

TrainedAs = Literal["trained", "skipped"]


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    """A group in a batch: its samples as (index, xxh3 of the sample)."""

    group: int
    samples: tuple[tuple[int, int], ...]
    ages: tuple[int, ...] = ()  # of its tokens, as `check_spans` has them


@dataclass(frozen=True, slots=True)
class FixedRows:
    """A supervised training's plan: how many rows its dataset has, and how many it uses in all, repetitions counted.

    Its groups are positions in that order, and each group's only sample is (row, xxh3 of the row). `sources`: rows of
    each source in the dataset, whose weights say how often it is used.
    """

    rows: int
    positions: int
    sources: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """A trainer began at a checkpoint of `from_step`; from there on older trainers' entries are history."""

    fence: int
    from_step: int
    batch_groups: int
    group_size: int
    fixed: FixedRows | None = None  # of a supervised training


@dataclass(frozen=True, slots=True)
class EvidenceEntry:
    """One batch of one trainer. `skipped`: its update was not finite and was left out."""

    step: int
    fence: int
    outcome: TrainedAs
    groups: tuple[TrainedGroup, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A trainer set out to train a step, with these groups → their tokens."""

    step: int
    fence: int
    groups: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Exit:
    """How a trainer ended that did not end well."""

    fence: int
    code: int  # negative: a signal
    error: str = ""  # type of what was raised; empty when a signal ended it


@dataclass(slots=True)
class Evidence:
    """Everything all trainers of a run wrote."""

    starts: list[Start] = field(default_factory=list)
    entries: list[EvidenceEntry] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    finished: list[tuple[int, int]] = field(default_factory=list)  # (fence, step) of trainers that reached the end
    problems: list[str] = field(default_factory=list)


class EvidenceLog:
    """Appends for one trainer. Every call is on disk when it returns."""

    def __init__(self, directory: Path, fence: int) -> None:
        self.fence = fence
        self._writer = LineWriter(directory / f"trainer-{fence:08d}.jsonl")

    def start(self, from_step: int, batch_groups: int, group_size: int, fixed: FixedRows | None = None) -> None:
        """Before anything else."""
        plan = {} if fixed is None else {"fixed": [fixed.rows, fixed.positions, fixed.sources]}
        self._append("start", from_step=from_step, batch_groups=batch_groups, group_size=group_size, **plan)

    def attempt(self, step: int, groups: Mapping[int, int]) -> None:
        """Before a step: its groups → their tokens."""
        self._append("attempt", step=step, groups=[[group, tokens] for group, tokens in groups.items()])

    def trained(self, step: int, groups: Sequence[TrainedGroup]) -> None:
        """The gradient of these groups went into the model; before the checkpoint that holds it."""
        self._append("trained", step=step, groups=_pack(groups))

    def skipped(self, step: int, groups: Sequence[TrainedGroup]) -> None:
        """These groups count as trained, but their update was not finite."""
        self._append("skipped", step=step, groups=_pack(groups))

    def finished(self, step: int) -> None:
        """The run reached its last step."""
        self._append("finished", step=step)

    def close(self) -> None:
        """Gives the file back."""
        self._writer.close()

    def _append(self, kind: str, **fields: Any) -> None:
        self._writer.append([{"kind": kind, "fence": self.fence, **fields}])


def exited(directory: Path, ended: Exit, seen_by: str) -> None:
    """A trainer ended, says a rank of it (`rank-0`) or its `launcher`. Each writes a file of its own."""
    writer = LineWriter(directory / f"exit-{ended.fence:08d}-{seen_by}.jsonl")
    writer.append([{"kind": "exit", "fence": ended.fence, "code": ended.code, "error": ended.error}])
    writer.close()


def read(directory: Path) -> Evidence:
    """All evidence of a run, in the order of fences. A torn last line is no problem: its step had not ended."""
    evidence = Evidence()
    for path in sorted(directory.glob("exit-*.jsonl")):
        for line in read_lines(path):
            if line.record is not None:
                _apply(evidence, line.record)
    for path in sorted(directory.glob("trainer-*.jsonl")):
        lines = read_lines(path)
        for position, line in enumerate(lines):
            if line.record is not None:
                _apply(evidence, line.record)
            elif position + 1 < len(lines):
                evidence.problems.append(f"{path.name} line {line.number} is damaged")
        if lines and (lines[0].record or {}).get("kind") not in ("start", None):
            evidence.problems.append(f"{path.name} does not begin with a start")
    return evidence


def _pack(groups: Sequence[TrainedGroup]) -> list[list[Any]]:
    return [[one.group, [[index, f"{xxh3:016x}"] for index, xxh3 in one.samples], *one.ages] for one in groups]


def _unpack(groups: Sequence[Any]) -> tuple[TrainedGroup, ...]:
    split = ((group, tuple((i, int(xxh3, 16)) for i, xxh3 in samples), tuple(ages)) for group, samples, *ages in groups)
    return tuple(TrainedGroup(*one) for one in split)


def _apply(evidence: Evidence, record: Record) -> None:
    fence = int(record["fence"])
    match record["kind"]:
        case "start":
            fixed = FixedRows(*plan[:2], *map(tuple, plan[2:])) if (plan := record.get("fixed")) else None
            sizes = record["batch_groups"], record["group_size"]
            evidence.starts.append(Start(fence, record["from_step"], *sizes, fixed))
        case "attempt":
            evidence.attempts.append(Attempt(record["step"], fence, dict(record["groups"])))
        case "trained" | "skipped" as outcome:
            evidence.entries.append(EvidenceEntry(record["step"], fence, outcome, _unpack(record["groups"])))
        case "exit":
            evidence.exits.append(Exit(fence, record["code"], record["error"]))
        case "finished":
            evidence.finished.append((fence, record["step"]))
        case kind:
            evidence.problems.append(f"fence {fence} wrote {kind!r}, which is no evidence")


# ---- Poison: what to do about a step that keeps crashing the trainer
# Owns the rule: twice is chance, the third time the micro-batches are halved, after that the largest group is proposed
# for a tombstone. Only a trainer's own failures count: one that was preempted, stopped or lost with its node, or that a
# service failed, says nothing about its batch. Pure: reads attempts and exits from the evidence and answers.


HALVED_CRASHES = 3
"""A batch that just doesn't fit into memory gets one try with half of it."""

_OF_OTHERS = (ExitCode.DONE, ExitCode.DRAINED, ExitCode.INFRA, -signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL)
_OUT_OF_MEMORY = "OutOfMemoryError"
"""Of the device. A device that is full is nobody's bug (exit 75), but it was this batch that didn't fit."""


@dataclass(frozen=True, slots=True)
class Precaution:
    """How to go about a step."""

    step: int
    crashes: int  # of its own, with the same groups
    micro_batch_divisor: int = 1
    tombstone: int | None = None  # propose this group, before the first take


def own_failure(ended: Exit) -> bool:
    """Whether the trainer failed by itself, so that its batch may be what it died of."""
    return ended.error == _OUT_OF_MEMORY or ended.code not in _OF_OTHERS


def precaution(evidence: Evidence, from_step: int) -> Precaution:
    """Precaution of a trainer that starts at `from_step`, against the step that crashed last.

    A later step than `from_step` may be the one: replaying from a checkpoint crashes on the way there, too.
    """
    trained = {(entry.step, entry.fence) for entry in evidence.entries}
    failed = {ended.fence for ended in evidence.exits if own_failure(ended)}
    crashed = [
        a for a in evidence.attempts if a.fence in failed and (a.step, a.fence) not in trained and a.step >= from_step
    ]
    if not crashed:
        return Precaution(from_step, 0)
    last = crashed[-1]
    if any(e.step == last.step and e.fence > last.fence for e in evidence.entries):
        return Precaution(from_step, 0)
    # crashes of that step with the same groups, since anybody trained it
    since = max((e.fence for e in evidence.entries if e.step == last.step), default=0)
    same = [a for a in crashed if a.step == last.step and a.fence > since and set(a.groups) == set(last.groups)]
    crashes = len({attempt.fence for attempt in same})
    if crashes < HALVED_CRASHES:
        return Precaution(last.step, crashes)
    if crashes == HALVED_CRASHES or not last.groups:
        return Precaution(last.step, crashes, micro_batch_divisor=2)
    largest = max(last.groups, key=lambda group: (last.groups[group], group))
    return Precaution(last.step, crashes, micro_batch_divisor=2, tombstone=largest)
