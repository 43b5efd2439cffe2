"""Recording of the trainer: each step's figures by sequence, and what was computed of each token, for people.

Owns what a StepRecord and a TokenRecord say. Training only hands over its arrays, which it never changes afterwards;
counting, packing and writing happen on the writer's thread. Rank 0 only. The samples with the lowest and the highest
reward of a step and with its largest mismatch are kept whatever share and budget are: where they exclude them, the
trainer writes these samples itself, from what it took of the ledger.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from areal.ledger import payload
from areal.record.segment import OUTCOMES, FrameKind, Header, sequence_text
from areal.record.writer import RecordWriter, in_share, sample_size
from areal.v1 import common_pb2 as common
from areal.v1 import record_pb2 as record
from areal.values.policy import version_of
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.algorithms.advantages import Advantages
from areal_trainer.algorithms.policy import PolicyTerms
from areal_trainer.data.batch import TokenBatch

# ---- Token buffers: what training computed of each token of a step, gathered over ranks for the recording


TRAINED, CLIPPED, REJECTED = 1, 2, 4


@dataclass(frozen=True)
class TrainedTokens:
    """Of one step, in the order of its batch; 0 where no gradient could reach."""

    logprobs: NDArray[np.float32]  # [T], of the policy at the start of the step, or what stands for it
    entropy: NDArray[np.float32]  # [T]
    flags: NDArray[np.uint8]  # [T]: a sum of TRAINED, CLIPPED, REJECTED


class TrainedTokensBuffer:
    """One row a quantity, on the device; nothing is copied to the host before `reduced`."""

    def __init__(self, tokens: int, device: torch.device) -> None:
        self._rows = torch.zeros((3, tokens), dtype=torch.float32, device=device)

    @torch.no_grad()
    def add(self, place: Tensor, logprobs: Tensor, entropy: Tensor, terms: PolicyTerms) -> None:
        """One micro-batch's tokens; `place` is where they are in the batch, [predicted]."""
        flags = TRAINED + CLIPPED * terms.clipped.float() + REJECTED * terms.rejected.float()
        self._rows[:, place] = torch.stack([logprobs.float(), entropy.float(), flags])

    def put(self, place: NDArray[np.int64], part: "TrainedTokensBuffer") -> None:
        """What was computed of a part of the batch, whose tokens are at `place`."""
        self._rows[:, torch.from_numpy(place)] = part._rows

    def reduced(self, add: Callable[[Tensor], None]) -> TrainedTokens:
        """All ranks' tokens: each is predicted on exactly one data rank. A collective."""
        add(self._rows)
        logprobs, entropy, flags = self._rows.cpu().numpy()
        return TrainedTokens(logprobs, entropy, flags.astype(np.uint8))


# ---- Recording of the trainer: each step's figures by sequence, and what was computed of each token, for people


CHUNK_TOKENS = 1 << 16  # of one frame: what is read to see one sample
_PER_TOKEN = 11  # bytes of the columns below

EXTREMES = 3  # samples of a step that are always kept

Digests = Mapping[int, Sequence[tuple[int, int]]]
"""Group → (index, xxh3 of the stored sample)."""

Stored = Mapping[tuple[int, int], bytes]
"""(group, index) → the sample as the ledger holds it."""

Piece = Callable[[int], bytes]
"""The bytes that a token stands for."""


@dataclass(frozen=True)
class TrainedStep:
    """What is known of a step once it is trained."""

    step: int
    fence: int
    tokens: TokenBatch
    advantages: Advantages
    computed: TrainedTokens
    digests: Digests
    stored: Stored
    seconds: Mapping[str, float]
    at: float = field(default_factory=time.time)

    @cached_property
    def trained(self) -> NDArray[np.bool_]:
        """[T]: the tokens in the loss."""
        return (self.computed.flags & TRAINED) > 0

    @cached_property
    def gap(self) -> NDArray[np.float32]:
        """[T]: |log π_trainer − log π_sampled|; 0 where nothing was trained."""
        gap = np.abs(self.computed.logprobs - self.tokens.behaviour_logprobs)
        return np.where(self.trained, gap, np.float32(0))

    @cached_property
    def extremes(self) -> list[int]:
        """The sequences with the lowest and the highest reward, and with the token of the largest mismatch."""
        tokens = self.tokens
        if not tokens.sequences:
            return []
        found = [int(tokens.rewards.argmin()), int(tokens.rewards.argmax())]
        if tokens.tokens:
            worst = int(np.nan_to_num(self.gap, nan=np.inf).argmax())
            found.append(int(np.searchsorted(tokens.offsets, worst, "right")) - 1)
        return sorted(set(found))


class StepRecorder:
    """Queues the records of each step. `share` and `budget_bytes` bound the tokens that are kept, never the step.

    `worker_budget_bytes` is what one worker may keep of a step. `pieces` is asked once, on the writer's thread.
    """

    def __init__(
        self,
        writer: RecordWriter,
        *,
        share: float,
        budget_bytes: int,
        worker_budget_bytes: int,
        pieces: Callable[[], Piece],
    ) -> None:
        self._writer = writer
        self._share = share
        self._budget = budget_bytes
        self._worker_budget = worker_budget_bytes
        self._pieces = pieces
        self._piece: Piece | None = None

    def step(self, done: TrainedStep) -> None:
        """A batch was trained."""
        tokens = done.tokens
        self._writer.offer(64 * tokens.sequences, lambda: step_record(done))
        kept = chosen(tokens, self._share, self._budget)
        if len(kept) < tokens.sequences:
            self._writer.drop("budget", int(tokens.sequences - len(kept)))
        for part in chunks(tokens, kept):
            size = _PER_TOKEN * int(tokens.lengths[part].sum())
            self._writer.offer(size, lambda part=part: token_record(done, part))  # type: ignore[misc]
        self._extremes(done, kept)

    def _extremes(self, done: TrainedStep, kept: NDArray[np.int64]) -> None:
        """Queue what share and budget left out of the extremes. Which worker made what is not known here."""
        tokens = done.tokens
        size = sample_size(int(tokens.lengths.max(initial=0)))
        excluded = sum(map(sample_size, tokens.lengths.tolist())) > self._worker_budget
        if len(kept) < tokens.sequences:

            def columns() -> tuple[Header, bytes] | None:
                part = np.setdiff1d(done.extremes, kept)
                return token_record(done, part) if len(part) else None

            self._writer.offer(EXTREMES * size, columns)
        for place in range(EXTREMES if excluded or self._share < 1 else 0):

            def sample(place: int = place) -> tuple[Header, bytes] | None:
                if place >= len(done.extremes):
                    return None
                one = done.extremes[place]
                known = in_share(int(tokens.group_ids[one]), self._share) and not excluded
                return None if known else self._sample(done, one)

            self._writer.offer(size, sample)

    def _sample(self, done: TrainedStep, one: int) -> tuple[Header, bytes] | None:
        """The sample of a sequence, as a worker would have written it but for its times."""
        self._piece = self._piece or self._pieces()
        return sample_record(done, one, self._piece)


def chosen(tokens: TokenBatch, share: float, budget_bytes: int) -> NDArray[np.int64]:
    """[kept] The sequences whose tokens are kept: whole groups of the share, as many as the budget holds."""
    groups = {int(group): in_share(int(group), share) for group in np.unique(tokens.group_ids)}
    wanted = np.array([groups[int(group)] for group in tokens.group_ids], np.bool_)
    size = np.cumsum(np.where(wanted, tokens.lengths, 0)) * _PER_TOKEN
    return np.flatnonzero(wanted & (size <= budget_bytes))


def chunks(tokens: TokenBatch, kept: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """`kept` in parts of about CHUNK_TOKENS tokens."""
    before = np.cumsum(tokens.lengths[kept]) // CHUNK_TOKENS
    return [part for part in np.split(kept, np.flatnonzero(np.diff(before)) + 1) if len(part)]


def step_record(done: TrainedStep) -> tuple[Header, bytes]:
    """A step's columns by sequence."""
    tokens, places = done.tokens, done.tokens.sequence_of
    trained = done.trained
    count = np.bincount(places[trained], minlength=tokens.sequences)
    gap = done.gap[trained]
    mean = np.bincount(places[trained], gap, tokens.sequences) / np.maximum(count, 1)
    beyond = np.bincount(places[trained], gap > math.log(2), tokens.sequences) / np.maximum(count, 1)
    worst = np.zeros(tokens.sequences, np.float32)
    np.maximum.at(worst, places[trained], gap)
    digest = {(group, index): xxh3 for group, pairs in done.digests.items() for index, xxh3 in pairs}
    keys = zip(tokens.group_ids.tolist(), tokens.sample_indices.tolist(), strict=True)
    rewards = tokens.rewards[done.advantages.counted]
    made = record.StepRecord(
        step=done.step,
        fence=done.fence,
        at=done.at,
        seconds=dict(done.seconds),
        groups=tokens.group_ids.astype("<u8").tobytes(),
        indices=tokens.sample_indices.astype("<u4").tobytes(),
        rewards=tokens.rewards.astype("<f8").tobytes(),
        advantages=done.advantages.values.astype("<f8").tobytes(),
        tokens=tokens.lengths.astype("<u4").tobytes(),
        trained=count.astype("<u4").tobytes(),
        ages=_ages(done.step, tokens).astype("<i4").tobytes(),
        mismatch=mean.astype("<f4").tobytes(),
        worst=worst.astype("<f4").tobytes(),
        beyond=beyond.astype("<f4").tobytes(),
        xxh3=np.array([digest.get(key, 0) for key in keys], "<u8").tobytes(),
    )
    mean_reward = float(rewards.mean()) if len(rewards) else 0.0
    header = Header(FrameKind.STEP, step=done.step, reward=mean_reward, tokens=tokens.tokens, version=done.fence)
    return header, made.SerializeToString()


def token_record(done: TrainedStep, part: NDArray[np.int64]) -> tuple[Header, bytes]:
    """The token columns of the sequences `part`, which are in the order of their groups."""
    tokens = done.tokens
    inside = np.concatenate([np.arange(tokens.offsets[one], tokens.offsets[one + 1]) for one in part])
    groups = tokens.group_ids[part]
    made = record.TokenRecord(
        step=done.step,
        fence=done.fence,
        groups=groups.astype("<u8").tobytes(),
        indices=tokens.sample_indices[part].astype("<u4").tobytes(),
        ordinals=_ordinals(tokens)[part].astype("<u4").tobytes(),
        lengths=tokens.lengths[part].astype("<u4").tobytes(),
        logprobs=done.computed.logprobs[inside].astype("<f4").tobytes(),
        entropy=done.computed.entropy[inside].astype("<f2").tobytes(),
        advantages=done.advantages.tokens[inside].astype("<f4").tobytes(),
        flags=done.computed.flags[inside].tobytes(),
    )
    header = Header(
        FrameKind.TOKENS, int(groups[0]), index=done.fence, step=done.step, tokens=len(inside), version=int(groups[-1])
    )
    return header, made.SerializeToString()


def sample_record(done: TrainedStep, one: int, piece: Piece) -> tuple[Header, bytes] | None:
    """The whole sample that the sequence `one` belongs to; None where its payload is not at hand."""
    tokens = done.tokens
    key = (int(tokens.group_ids[one]), int(tokens.sample_indices[one]))
    mine = (tokens.group_ids == key[0]) & (tokens.sample_indices == key[1])
    if (stored := done.stored.get(key)) is None:
        return None
    sample = common.Sample.FromString(payload.decode_raw(stored))
    ids = [np.frombuffer(sequence.token_ids, "<i4").tolist() for sequence in sample.sequences]
    newest = max((version_of(span.policy_id) for seq in sample.sequences for span in seq.spans), default=-1)
    made = record.SampleRecord(
        sample=sample,
        xxh3=payload.digest(stored),
        outcome="truncated" if tokens.truncated[mine].any() else "complete",
        reward=float(tokens.rewards[one]),
        newest_version=newest,
        texts=[sequence_text(map(piece, each)) for each in ids],
        made_at=done.at,
    )
    header = Header(
        FrameKind.SAMPLE,
        *key,
        reward=made.reward,
        tokens=sum(map(len, ids)),
        version=newest,
        outcome=OUTCOMES.index(made.outcome),
    )
    return header, made.SerializeToString()


def _ordinals(tokens: TokenBatch) -> NDArray[np.int64]:
    """[S]: which of its sample's sequences each is; those of a sample are neighbours."""
    keys = np.stack([tokens.group_ids, tokens.sample_indices], axis=1)
    fresh = np.ones(tokens.sequences, np.bool_)
    fresh[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    places = np.arange(tokens.sequences)
    ordinals: NDArray[np.int64] = places - np.maximum.accumulate(np.where(fresh, places, 0))
    return ordinals


def _ages(step: int, tokens: TokenBatch) -> NDArray[np.int64]:
    """[S]: versions between the trainer and a sequence's oldest token that it learns from; −1 without one."""
    none = np.iinfo(np.int64).max
    oldest = np.full(tokens.sequences, none)
    sampled = (tokens.versions >= 0) & tokens.trainable()
    np.minimum.at(oldest, tokens.sequence_of[sampled], tokens.versions[sampled])
    return np.where(oldest == none, -1, step - oldest)
