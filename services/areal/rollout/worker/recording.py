"""Recording of a worker: each sample, evaluated row and failure with its text, for people.

Owns which of them are kept, and what a SampleRecord says. On the worker's loop it only decides and queues; decoding,
packing and writing happen on the writer's thread.
"""

import time
from dataclasses import dataclass

import orjson

from areal.errors import BugError
from areal.ledger import payload
from areal.ledger.values import NewSample, SampleMeta
from areal.record.segment import OUTCOMES, FrameKind, Header, sequence_text
from areal.record.writer import RecordWriter, StepBudget, in_share, sample_size
from areal.rollout.contract.values import FailureKind
from areal.rollout.worker.episode_run import DEADLINE
from areal.rollout.worker.runner import EpisodeResult, Key
from areal.v1 import common_pb2 as common
from areal.v1 import record_pb2 as record
from areal.values.generation import ROUTES
from areal.values.images import IMAGE
from areal.values.policy import version_of
from areal.workflow.episode import Episode, Sequence
from areal.workflow.rows.forms import answer_text, column_of
from areal.workflow.tokenizer import Tokenizer

EXPECTED_CHARS = 4_000
_SAMPLE_FIELD = bytes([record.SampleRecord.SAMPLE_FIELD_NUMBER << 3 | 2])  # a message, by its length


@dataclass(frozen=True)
class RecordLimits:
    """What the job allows. `batch_groups`: groups a step, by which the budget is told off."""

    share: float
    budget_bytes: int  # of one step
    batch_groups: int


class EpisodeRecording:
    """Queues records for one worker. `writer` is None where nothing is recorded, `row` a dataset row as JSON.

    `answer_field` names the column of the expected answer.
    """

    def __init__(
        self,
        writer: RecordWriter | None,
        tokenizer: Tokenizer,
        limits: RecordLimits,
        worker_id: str,
        answer_field: str = "answer",
    ) -> None:
        self._writer = writer
        self._tokenizer = tokenizer
        self._limits = limits
        self._worker_id = worker_id
        self._answer_field = answer_field
        self._budget = StepBudget(limits.budget_bytes)
        self._evaluated = StepBudget(limits.budget_bytes // 10)

    def sampled(self, key: Key, ending: EpisodeResult, stored: bytes, row: bytes = b"") -> None:
        """A sample that goes to the ledger as `stored`."""
        episode = ending.episode
        if self._writer is None or episode is None or not in_share(key.group, self._limits.share):
            return
        size = sample_size(sum(len(sequence.input_ids) for sequence in episode.sequences))
        if not self._budget.take(key.group // self._limits.batch_groups, size):
            self._writer.drop("budget")
            return
        reward, now = episode.reward, time.time()

        def make() -> tuple[Header, bytes]:
            raw = payload.decode_raw(stored)
            if any(sequence.routes for sequence in episode.sequences):
                raw = _without_attachments(raw)
            return self._record(key, ending, raw, payload.digest(stored), reward, now, row)

        self._writer.offer(max(size, len(stored)), make)

    def evaluated(self, key: Key, ending: EpisodeResult, row: bytes = b"") -> None:
        """A row of an evaluation; `key.group` is the row."""
        episode = ending.episode
        if self._writer is None or episode is None:
            return
        size = sample_size(sum(len(sequence.input_ids) for sequence in episode.sequences))
        versions = versions_of(episode)
        if not self._evaluated.take(versions[0] if versions else 0, size):
            self._writer.drop("budget")
            return
        origin = Origin(key.group, key.index, 0, 0, self._worker_id, common.Digests(), ending.verdict)
        now = time.time()

        def make() -> tuple[Header, bytes]:
            made = build(episode, origin)
            raw = payload.decode_raw(made.payload)
            return self._record(key, ending, raw, made.meta.xxh3, episode.reward, now, row)

        self._writer.offer(size, make)

    def failed(self, key: Key, ending: EpisodeResult, row: bytes = b"") -> None:
        """An episode that ended without a sample: always kept, whatever the share."""
        if self._writer is None:
            return
        sample = common.Sample(key=common.SampleKey(group=key.group, index=key.index), worker_id=self._worker_id)
        raw, now = sample.SerializeToString(), time.time()
        size = sample_size(0) + len(ending.traceback)
        self._writer.offer(size, lambda: self._record(key, ending, raw, 0, 0.0, now, row))

    def close(self) -> None:
        """Write what is queued."""
        if self._writer is not None:
            self._writer.close()

    # ---- on the writer's thread

    def _record(
        self, key: Key, ending: EpisodeResult, sample: bytes, xxh3: int, reward: float, at: float, row: bytes
    ) -> tuple[Header, bytes]:
        """The header and the message; `sample` is the serialised Sample, put in as it is."""
        outcome = _outcome(ending)
        sequences = ending.episode.sequences if ending.episode is not None else ()
        versions = versions_of(ending.episode) if ending.episode is not None else None
        newest = versions[1] if versions else -1
        made = record.SampleRecord(
            xxh3=xxh3,
            evaluation_id=key.evaluation,
            outcome=outcome,
            reward=reward,
            newest_version=newest,
            texts=[sequence_text(map(self._tokenizer.piece, one.input_ids.tolist())) for one in sequences],
            moments=ending.moments,
            made_at=at,
            note=ending.episode.note if ending.episode is not None else "",
            expected=expected_of(row, self._answer_field),
        )
        if ending.kind is not FailureKind.NONE:
            kind = common.FAULT_KIND_INFRA if ending.kind is FailureKind.INFRA else common.FAULT_KIND_DATA
            made.fault.CopyFrom(
                common.Fault(kind=kind, message=ending.message, fix=ending.fix, traceback=ending.traceback)
            )
        header = Header(
            FrameKind.EVALUATION if key.evaluation else FrameKind.SAMPLE,
            key.group,
            key.index,
            reward=reward,
            tokens=sum(len(one.input_ids) for one in sequences),
            version=newest,
            outcome=OUTCOMES.index(outcome),
        )
        return header, made.SerializeToString() + _SAMPLE_FIELD + _varint(len(sample)) + sample


def _without_attachments(raw: bytes) -> bytes:
    """A serialised Sample without the experts of its tokens: they would be most of a recording, which nobody reads."""
    sample = common.Sample.FromString(raw)
    for sequence in sample.sequences:
        del sequence.attachments[:]
    return sample.SerializeToString()


def expected_of(row: bytes, field: str) -> str:
    """The expected answer of a dataset row, cut to EXPECTED_CHARS; empty where it has none."""
    try:
        value = column_of(orjson.loads(row), field)
    except (orjson.JSONDecodeError, TypeError):
        return ""
    text = orjson.dumps(value).decode() if isinstance(value, list | dict) else answer_text(value)
    return (text or "")[:EXPECTED_CHARS]


def _outcome(ending: EpisodeResult) -> str:
    episode = ending.episode
    if episode is None:
        return ending.kind.value
    if episode.sequences[0].finish_reason == DEADLINE:
        return "deadline"
    return "truncated" if episode.truncated else "complete"


def _varint(value: int) -> bytes:
    """A length as protobuf writes it."""
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


# ---- From an episode to what the ledger stores. Pure


@dataclass(frozen=True)
class Origin:
    """Which sample it is, under which lease it was made, and by whom."""

    group: int
    index: int
    attempt: int
    max_staleness: int
    worker_id: str
    digests: common.Digests
    verdict: common.Verdict | None = None


def versions_of(episode: Episode) -> tuple[int, int] | None:
    """Oldest and newest policy version of any sampled token; None when there is none."""
    versions = [version_of(span.policy_id) for sequence in episode.sequences for span in sequence.spans]
    return (min(versions), max(versions)) if versions else None


def build(episode: Episode, origin: Origin) -> NewSample:
    """Serialise an episode, which was checked before, with its checksum. Raises BugError without a sampled token."""
    versions = versions_of(episode)
    if versions is None:
        raise BugError(f"sample {origin.index} of group {origin.group} has no sampled token")
    oldest, newest = versions
    sample = common.Sample(
        key=common.SampleKey(group=origin.group, index=origin.index, attempt=origin.attempt),
        sequences=[_sequence(sequence) for sequence in episode.sequences],
        max_staleness=origin.max_staleness,
        oldest_version=oldest,
        verdict=_verdict(episode, origin.verdict),
        digests=origin.digests,
        worker_id=origin.worker_id,
    )
    stored = payload.encode(sample)
    meta = SampleMeta(
        attempt=origin.attempt,
        reward=episode.reward,
        oldest_version=oldest,
        newest_version=newest,
        max_staleness=origin.max_staleness,
        tokens=sum(len(sequence.input_ids) for sequence in episode.sequences),
        truncated=episode.truncated,
        xxh3=payload.digest(stored),
        worker_id=origin.worker_id,
        masked=episode.is_masked,
    )
    return NewSample(origin.group, origin.index, stored, meta)


def _verdict(episode: Episode, given: common.Verdict | None) -> common.Verdict | None:
    """What the verifier said, with the episode's own figures beside the reward's parts."""
    if not episode.figures:
        return given
    verdict = common.Verdict(score=episode.reward)
    if given is not None:
        verdict.CopyFrom(given)
    verdict.figures.update(episode.figures)
    return verdict


def _sequence(sequence: Sequence) -> common.TokenSequence:
    return common.TokenSequence(
        token_ids=sequence.input_ids.astype("<i4", copy=False).tobytes(),
        logprobs=sequence.logprobs.astype("<f4", copy=False).tobytes(),
        loss_mask=sequence.loss_mask.astype("u1", copy=False).tobytes(),
        spans=[
            common.Span(start=span.start, end=span.end, policy_id=span.policy_id, server_id=span.server_id)
            for span in sequence.spans
        ],
        reward=sequence.reward,
        finish_reason=sequence.finish_reason,
        attachments=[
            *([common.Attachment(kind=ROUTES, data=sequence.routes)] if sequence.routes else ()),
            *(common.Attachment(kind=IMAGE, data=image.data) for image in sequence.images),
        ],
    )
