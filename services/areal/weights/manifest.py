"""Manifest of a published version: every tensor with its place and checksum, every file, the canary and its verdict.

Owns the JSON form and its digest, by which readers recognise a version, and how far a server's log-probabilities may be
from the trainer's. Never touches the tensors themselves.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from areal.errors import DataError
from areal.values.policy import PolicyId
from areal.weights.adapter import ADAPTER_CONFIG
from areal.weights.delta import Encoding

MANIFEST_NAME = "manifest.json"


class _ManifestValue(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TensorEntry(_ManifestValue):
    """One tensor: where its bytes lie and what they must hash to."""

    shard: str
    offset: int = Field(ge=0)  # bytes from the start of the shard's file
    length: int = Field(ge=0)  # bytes
    dtype: str  # a safetensors name: F32, BF16, F16, I64 …
    shape: tuple[int, ...]
    xxh3: str  # xxh3-128 of the bytes, hexadecimal


class DeltaEntry(_ManifestValue):
    """The change of one tensor from the base: where its bytes lie, what they hash to, how they are encoded."""

    file: str
    offset: int = Field(ge=0)  # bytes from the start of the file
    length: int = Field(ge=0)  # bytes
    xxh3: str  # xxh3-128 of these bytes, hexadecimal; the result's is the tensor's own
    encoding: Encoding


class Canary(_ManifestValue):
    """Tokens that a server scores after each swap, and the trainer's log-probabilities of them.

    `logprobs[k]` is the log-probability of `token_ids[k]` given the tokens before it; the first is 0. In bfloat16
    single tokens differ by tenths between kernels, so there the mean decides, with a loose bound on the worst.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    tolerance: float = Field(gt=0)  # of the largest difference
    mean_tolerance: float | None = Field(None, gt=0)  # of the mean difference; None: not bounded by itself

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if len(self.token_ids) != len(self.logprobs) or not self.token_ids:
            raise ValueError("a canary has one log-probability a token, and at least one token")
        return self


class Manifest(_ManifestValue):
    """Everything a reader needs to know before it trusts a version's bytes.

    In a delta, `tensors` says what comes out when it is applied: the placement is the base's, the checksums are new.
    """

    format: int = 1
    policy: str  # PolicyId as text
    base: str | None = None  # digest of the manifest that this delta applies to; None: full weights
    base_policy: str | None = None  # the base's policy: where its directory is
    step: int  # batches consumed when these weights were made
    created: float  # Unix seconds, for people; no part of the content
    tensors: Mapping[str, TensorEntry]
    deltas: Mapping[str, DeltaEntry] = Field(default_factory=dict)  # of tensors that differ from the base
    frozen: Mapping[str, str] = Field(default_factory=dict)  # an adapter's base: tensor → xxh3-128 of its bytes
    files: Mapping[str, str]  # config.json, tokenizer.json …: name → sha256
    canary: Canary | None = None

    @property
    def policy_id(self) -> PolicyId:
        return PolicyId.parse(self.policy)

    @property
    def is_adapter(self) -> bool:
        """Whether this is a LoRA adapter, to be applied to the start model."""
        return ADAPTER_CONFIG in self.files

    @property
    def total_bytes(self) -> int:
        return sum(entry.length for entry in self.tensors.values())

    @property
    def stored_bytes(self) -> int:
        """Bytes of this version on the volume: of a delta, the changes."""
        if self.base is None:
            return self.total_bytes
        return sum(entry.length for entry in self.deltas.values())

    def to_bytes(self) -> bytes:
        """The file's bytes: the same for equal manifests."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    def digest(self) -> str:
        """sha256 of the file's bytes, hexadecimal: the name that readers trust."""
        return digest_of(self.to_bytes())

    def content_digest(self) -> str:
        """sha256 of the tensors' and files' checksums: the same weights have the same one under every fence."""
        content = {name: [str(part) for part in parts] for name, parts in self._content().items()}
        return digest_of(json.dumps(content, sort_keys=True).encode())

    def changes(self, other: "Manifest") -> list[str]:
        """Names of tensors, files and facts that differ; empty for the same weights of the same policy.

        The time, the canary and the placement in shards are no part of the content.
        """
        names = [fact for fact in ("policy", "base", "step") if getattr(self, fact) != getattr(other, fact)]
        mine, theirs = self._content(), other._content()
        return names + [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]

    def _content(self) -> dict[str, tuple[object, ...]]:
        tensors = {name: (entry.dtype, entry.shape, entry.xxh3) for name, entry in self.tensors.items()}
        return {**tensors, **{name: (digest,) for name, digest in self.files.items()}}

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Manifest":
        """Read a manifest file's bytes; raises DataError when they are none."""
        try:
            return cls.model_validate_json(raw)
        except ValidationError as error:
            raise DataError(
                f"the weights' manifest is unreadable: {error}", fix="Publish the version again."
            ) from error


def digest_of(raw: bytes) -> str:
    """The digest of a manifest's bytes as they lie in the file."""
    return hashlib.sha256(raw).hexdigest()


@dataclass(frozen=True)
class Difference:
    """Absolute differences of log-probabilities; infinite where they can't be compared."""

    mean: float
    worst: float


def difference(scored: Sequence[float], expected: Sequence[float]) -> Difference:
    """Of two lists token by token; infinite when lengths differ or a value is not a number."""
    if len(scored) != len(expected):
        return Difference(math.inf, math.inf)
    values = [abs(ours - theirs) for ours, theirs in zip(scored, expected, strict=True)]
    if not all(math.isfinite(value) for value in values):
        return Difference(math.inf, math.inf)
    return Difference(sum(values) / max(len(values), 1), max(values, default=0.0))


def problem(canary: Canary, found: Difference) -> str | None:
    """Why a server that scores the canary with this difference holds other weights; None when it passes."""
    if canary.mean_tolerance is not None and not found.mean <= canary.mean_tolerance:
        return (
            f"log-probabilities differ from the trainer's by {found.mean:.3g} in the mean, "
            f"more than {canary.mean_tolerance:.3g} (worst {found.worst:.3g})"
        )
    if not found.worst <= canary.tolerance:
        return (
            f"log-probabilities differ from the trainer's by {found.worst:.3g}, more than {canary.tolerance:.3g} "
            f"(mean {found.mean:.3g})"
        )
    return None
