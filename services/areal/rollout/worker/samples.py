"""From an episode to what the ledger stores. Pure."""

from dataclasses import dataclass

from areal.errors import BugError
from areal.ledger import payload
from areal.ledger.values import NewSample, SampleMeta
from areal.v1 import common_pb2 as common
from areal.values.generation import ROUTES
from areal.values.images import IMAGE
from areal.values.policy import version_of
from areal.workflow.episode import Episode, Sequence


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
