"""Audit of a run's tokens: the journals of servers and trainer, the evidence and the tombstones, read and compared.

Owns which batches count, as the audit of groups has it, and whether a journal is whole. A sample is opened only when
its batch is read, so memory doesn't grow with the run but by one key a sample.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from areal.errors import ConfigError
from areal.ledger.audit import surviving
from areal.ledger.evidence import read as read_evidence
from areal.ledger.journal import read_journal
from areal.record.segment import HEADER_BYTES, SUFFIX, Frame, FrameKind, frames, read
from areal.v1 import generation_pb2 as wire
from areal.v1 import record_pb2 as record
from areal.values.policy import version_of

from areal_view.index.oracle import FaultOf, JournalRequest, TokenReport, TrainedSequence, UntrainedReason, compare

Key = tuple[int, int]  # (group, index)
_OWN_ENDS = (wire.END_REASON_STOP, wire.END_REASON_LENGTH)


@dataclass(frozen=True, slots=True)
class _TokenPlace:
    """Where a request's record lies, and how many tokens it made."""

    path: Path
    offset: int
    tokens: int


@dataclass
class _Journals:
    """The frames of all journals of a run."""

    requests: defaultdict[Key, list[_TokenPlace]] = field(default_factory=lambda: defaultdict(list))
    batches: list[tuple[Path, Frame]] = field(default_factory=list)
    evaluated: int = 0  # tokens
    gaps: list[str] = field(default_factory=list)


def audit_tokens(run_dir: Path) -> TokenReport:
    """Audits `tokens/` of a run. Raises ConfigError for a run that kept no journals."""
    journals = _index(run_dir / "tokens")
    if not journals.requests and not journals.batches:
        raise ConfigError(
            f"{run_dir} has no journal of tokens",
            fix="make the run with recording.tokenAudit=true; there is nothing to compare without",
        )
    survivors = {(entry.step, entry.fence): entry for entry in surviving(read_evidence(run_dir / "evidence"))}
    tombstones = read_journal(run_dir / "journal" / "controller.jsonl").tombstones
    report = TokenReport(gaps=journals.gaps)
    told: set[Key] = set()
    for path, frame in journals.batches:
        if (frame.header.step, frame.header.index) not in survivors:
            continue  # of a trainer that another one went back behind
        raw = read(path, frame.offset)
        if raw is None:
            report.gaps.append(f"{path.name}: the batch at {frame.offset} is damaged")
            continue
        for key, sequences in _samples(record.TrainedBatch.FromString(raw)).items():
            _sample(report, journals, key, sequences, again=key in told)
            told.add(key)
    trained = {
        (group.group, index): entry.step
        for entry in survivors.values()
        for group in entry.groups
        for index, _ in group.samples
    }
    _untold(report, trained, told)
    report.untrained[UntrainedReason.EVALUATION] += journals.evaluated
    report.sampled += journals.evaluated
    groups = {group for group, _ in trained}
    for key, places in journals.requests.items():
        if key in told:
            continue
        tokens = sum(place.tokens for place in places)
        report.sampled += tokens
        if key[0] in tombstones:
            report.untrained[f"{UntrainedReason.TOMBSTONED} ({tombstones[key[0]].reason})"] += tokens
        elif key[0] in groups:
            report.untrained[UntrainedReason.NOT_IN_GROUP] += tokens
        else:
            report.untrained[UntrainedReason.IN_FLIGHT] += tokens
    report.untrained = Counter({why: tokens for why, tokens in report.untrained.items() if tokens})
    return report


def _sample(
    report: TokenReport, journals: _Journals, key: Key, sequences: list[TrainedSequence], *, again: bool
) -> None:
    name = f"sample ({key[0]}, {key[1]})"
    if again:
        tokens = sum(int(one.trained.sum()) for one in sequences)
        report.trained += tokens
        report.fault(FaultOf.TWICE, tokens, f"{name} in another step")
        return
    made = [found for place in journals.requests.get(key, ()) if (found := _sampled(place)) is not None]
    report.add(compare(name, sequences, made, gaps=bool(report.gaps)))


def _untold(report: TokenReport, trained: dict[Key, int], told: set[Key]) -> None:
    """Samples that were trained, says the evidence, and are in no journaled batch; counted as one token each."""
    for key in sorted(trained.keys() - told):
        if report.gaps:
            report.unwitnessed += 1
        else:
            report.fault(FaultOf.UNTOLD, 1, f"sample {key} of step {trained[key]}")


# ---- files


def _index(directory: Path) -> _Journals:
    found = _Journals()
    series: defaultdict[str, list[Path]] = defaultdict(list)  # of one process each
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        series[path.name.rpartition("-")[0]].append(path)
    for name, paths in series.items():
        closed = None
        for number, path in enumerate(paths):
            if int(path.stem.rpartition("-")[2]) != number:
                found.gaps.append(f"{path.name}: a segment before it is gone")
                break
        for path in paths:
            closed, end = None, 0
            for frame in frames(path):
                closed, end = _take(found, path, frame), frame.offset + HEADER_BYTES + frame.length
            if end != path.stat().st_size:
                found.gaps.append(f"{path.name} is damaged at {end}")
        if closed is None:
            found.gaps.append(f"{name} was not closed: its process died")
        elif closed:
            found.gaps.append(f"{name} could not keep {closed} records")
    return found


def _take(found: _Journals, path: Path, frame: Frame) -> int | None:
    """Note a frame; how many records were dropped, when it is the last one."""
    head = frame.header
    match head.kind:
        case FrameKind.GENERATION if head.step:
            found.requests[head.group, head.index].append(_TokenPlace(path, frame.offset, head.tokens))
        case FrameKind.GENERATION:
            found.evaluated += head.tokens
        case FrameKind.BATCH:
            found.batches.append((path, frame))
        case FrameKind.CLOSED:
            return head.tokens
    return None


def _sampled(place: _TokenPlace) -> JournalRequest | None:
    raw = read(place.path, place.offset)
    if raw is None:
        return None
    one = record.GenerationRecord.FromString(raw)
    ids = np.frombuffer(one.token_ids, "<i4")
    versions = np.full(len(ids), -1, np.int32)
    for span in one.spans:
        versions[span.start : span.end] = version_of(span.policy_id)
    return JournalRequest(
        f"{one.request_id} at {one.server_id}", one.key.attempt, np.frombuffer(one.fed, "<i4"), ids,
        np.frombuffer(one.logprobs, "<f4"), versions, one.temperature, whole=one.end in _OWN_ENDS,
        routes=np.frombuffer(one.routes, "<u4") if one.routes else None,
    )  # fmt: skip


def _samples(batch: record.TrainedBatch) -> dict[Key, list[TrainedSequence]]:
    """A batch's sequences by sample."""
    found: dict[Key, list[TrainedSequence]] = {}
    for key, part in _parts(batch):
        sequence = TrainedSequence(
            ids=np.frombuffer(batch.token_ids, "<i4")[part],
            logprobs=np.frombuffer(batch.logprobs, "<f4")[part],
            versions=np.frombuffer(batch.versions, "<i4")[part],
            trained=np.frombuffer(batch.trained, "u1")[part].astype(np.bool_),
            temperature=batch.temperature,
            routes=np.frombuffer(batch.routes, "<u4")[part] if batch.routes else None,
        )
        found.setdefault(key, []).append(sequence)
    return found


def _parts(batch: record.TrainedBatch) -> Iterator[tuple[Key, slice]]:
    ends = np.cumsum(np.frombuffer(batch.lengths, "<u4"), dtype=np.int64).tolist()
    groups, indices = np.frombuffer(batch.groups, "<u8").tolist(), np.frombuffer(batch.indices, "<u4").tolist()
    for group, index, start, end in zip(groups, indices, [0, *ends[:-1]], ends, strict=True):
        yield (group, index), slice(start, end)
