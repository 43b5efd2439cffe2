"""Evidence: what the trainer says it trained, written when the gradient is taken.

Owns one file a fence, `<run>/evidence/trainer-<fence>.jsonl`, so that two trainers never share one. The audit believes
these files and the controller's journal, nothing else. Also holds the attempts of each step, which decide about poison.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
