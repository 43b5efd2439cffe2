"""Values the ledger takes and gives.

Owns the vocabulary of the ledger's operations, shared by the pure model and both Redis clients, so that their answers
can be compared with `==`. Nothing here does anything but encode itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import orjson

COMPLETE = "complete"
"""Outcome of a group that waits to be trained."""

TRAINED = "trained"
"""Outcome of a group that a checkpoint holds. Every other outcome is the reason of a tombstone."""


class TombstoneReason(StrEnum):
    """Why a group ended without being trained."""

    FILTERED = "filtered"  # all its samples have the same reward
    REJECTED = "rejected"  # the workflow refused it, raised or hung
    ENDED = "ended"  # the run stopped before it
    DEADLINE = "deadline"  # too few whole samples in time
    POISON = "poison"  # it crashes the trainer
    INFRA = "infra"  # the world kept failing


REPLACES_COMPLETE = frozenset({TombstoneReason.POISON.value, TombstoneReason.ENDED.value})
"""Tombstones that a complete group may still get: what can't be trained, and what a lowered maxSteps leaves behind."""

AFTER_COMPLETE = frozenset({*REPLACES_COMPLETE, TRAINED})
"""What a complete group may become."""


class AddOutcome(StrEnum):
    """What became of a sample that a worker brought."""

    STORED = "stored"
    DUPLICATE = "duplicate"  # an earlier attempt is stored: that one counts
    FINISHED = "finished"  # its group is closed or consumed: drop it


class CloseStatus(StrEnum):
    """What became of a request to close a group."""

    CLOSED = "closed"
    ALREADY = "already"  # it was closed before, with the outcome in the answer
    MISSING = "missing"  # not closed: samples are missing


@dataclass(frozen=True, slots=True)
class SampleMeta:
    """What the controller needs to know of a stored sample without reading it."""

    attempt: int
    reward: float
    oldest_version: int  # of any sampled token
    newest_version: int
    max_staleness: int  # the group's η
    tokens: int
    truncated: bool
    xxh3: int  # of the uncompressed sample
    worker_id: str = ""
    masked: bool = False  # none of its tokens is trained, so its reward is no score
    sampled: int = 0  # tokens that its episode was given, those that it did not use too
    moved: int = 0  # of `sampled`, those made before their answer went on elsewhere

    def pack(self) -> bytes:
        """As a JSON array: small, and legible in redis-cli."""
        return orjson.dumps([getattr(self, name) for name in self.__slots__])

    @classmethod
    def unpack(cls, data: bytes) -> "SampleMeta":
        """The inverse of `pack`."""
        return cls(*orjson.loads(data))


@dataclass(frozen=True, slots=True)
class NewSample:
    """A sample to store: episode `index` of group `group`."""

    group: int
    index: int
    payload: bytes
    meta: SampleMeta


@dataclass(frozen=True, slots=True)
class AddResult:
    """Outcome of `add_sample`; `stored` is the meta that counts, when the ledger holds one."""

    outcome: AddOutcome
    stored: SampleMeta | None = None


@dataclass(frozen=True, slots=True)
class CloseResult:
    """Outcome of `close`. `outcome` is what the group is closed with, None when it is open or consumed."""

    status: CloseStatus
    outcome: str | None = None
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TakenGroup:
    """A closed group of a batch. A tombstone has no payloads; `indices` and `metas` run along `payloads`."""

    group: int
    outcome: str
    payloads: tuple[bytes, ...] = ()
    indices: tuple[int, ...] = ()
    metas: tuple[SampleMeta, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether it is to be trained."""
        return self.outcome == COMPLETE


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """Everything the controller compares with its journal and its cursor."""

    low: int  # every group below has ended and is freed
    committed: int  # a checkpoint holds the batches of the steps below
    closed: Mapping[int, str]
    samples: Mapping[int, Mapping[int, SampleMeta]]
    batches: Mapping[int, tuple[int, ...]]  # by step, those that are not freed
    bytes: int  # of payloads held
    trainer_fence: int = 0
    controller_fence: int = 0
    run_id: str = ""
