"""Writes a version so that nobody ever sees half of it.

Everything goes to `.tmp-<version>-<random>`, every file is fsynced, the manifest last; then one rename makes the
version visible and the parent is fsynced. Tensors that share storage (tied embeddings) are the caller's business: what
is given is written. The buffers of one shard are held at a time: an iterable making tensors on demand bounds memory.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import xxhash
from typing_extensions import Buffer

from areal.errors import BugError, InfraError
from areal.files import sync_directory, sync_file
from areal.v1 import common_pb2 as common
from areal.values.policy import PolicyId
from areal.weights.manifest import MANIFEST_NAME, Canary, Manifest, TensorEntry
from areal.weights.safetensors_format import DTYPE_BYTES, TensorHeader, byte_size, encode_header

TMP_PREFIX = ".tmp-"
INDEX_NAME = "model.safetensors.index.json"
DEFAULT_SHARD_BYTES = 2 << 30  # also what a publisher holds in memory at once

TensorSource: TypeAlias = tuple[str, str, Sequence[int], Buffer]
"""Name, safetensors dtype, shape, contiguous little-endian bytes."""


@dataclass(frozen=True)
class WeightsRef:
    """A published version: what `PublishWeights` carries to the servers."""

    policy_id: PolicyId
    path: Path
    manifest_digest: str

    def message(self, *, rollback: bool = False) -> common.WeightsRef:
        """The same on the wire."""
        return common.WeightsRef(
            policy_id=str(self.policy_id), path=str(self.path), manifest_digest=self.manifest_digest, rollback=rollback
        )


@dataclass
class _Shard:
    """Tensors gathered until they fill a file."""

    tensors: list[tuple[str, str, tuple[int, ...], memoryview]] = field(default_factory=list)
    size: int = 0

    def write(self, path: Path) -> dict[str, TensorEntry]:
        """Write the file and fsync it; widest dtypes first, so that every tensor is aligned."""
        ordered = sorted(self.tensors, key=lambda tensor: -DTYPE_BYTES[tensor[1]])
        headers, position = [], 0
        for name, dtype, shape, data in ordered:
            headers.append(TensorHeader(name, dtype, shape, position, position + data.nbytes))
            position += data.nbytes
        head = encode_header(headers)
        entries = {}
        with path.open("wb") as file:
            file.write(head)
            for header, (name, dtype, shape, data) in zip(headers, ordered, strict=True):
                file.write(data)
                entries[name] = TensorEntry(
                    shard=path.name,
                    offset=len(head) + header.start,
                    length=data.nbytes,
                    dtype=dtype,
                    shape=shape,
                    xxh3=xxhash.xxh3_128_hexdigest(data),
                )
        sync_file(path)
        return entries


def publish(
    root: Path,
    policy: PolicyId,
    tensors: Iterable[TensorSource],
    canary: Canary | None,
    extra_files: Mapping[str, bytes | Path],
    *,
    step: int | None = None,
    base: str | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> WeightsRef:
    """Write `policy` under `root` as a Hugging Face directory with a manifest; returns how to find it.

    `extra_files` (config.json, tokenizer.json …) are copied beside the weights. `step` defaults to the version.
    Publishing a policy that is already there with the same tensors and files changes nothing and returns what is there;
    with other content it raises BugError, because a policy's name is never used twice. A full or broken disk is an
    InfraError; whatever fails, nothing becomes visible.
    """
    if policy.version < 0:
        raise BugError(f"policy {policy} holds nothing: it can't be published")
    target = root / policy.directory
    staging = root / f"{TMP_PREFIX}{policy.directory}-{uuid.uuid4().hex[:12]}"
    try:
        staging.mkdir(parents=True)
        files = _write_files(staging, extra_files)
        entries = _write_tensors(staging, tensors, shard_bytes)
        manifest = Manifest(
            policy=str(policy),
            base=base,
            step=policy.version if step is None else step,
            created=time.time(),
            tensors=entries,
            files=files,
            canary=canary,
        )
        _write(staging / MANIFEST_NAME, manifest.to_bytes())
        sync_directory(staging)
        if _rename_new(staging, target):
            sync_directory(root)
            return WeightsRef(policy, target, manifest.digest())
        return _already_there(target, policy, manifest)
    except OSError as error:
        raise InfraError(
            f"publishing policy {policy} under {root} failed: {error}",
            fix="Free space on the run's volume, or check that it is mounted and writable.",
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _already_there(target: Path, policy: PolicyId, manifest: Manifest) -> WeightsRef:
    raw = (target / MANIFEST_NAME).read_bytes()
    there = Manifest.from_bytes(raw)
    if changes := there.changes(manifest):
        raise BugError(f"policy {policy} was published before with other content: {', '.join(changes[:3])} differs")
    return WeightsRef(policy, target, there.digest())


def _write_tensors(staging: Path, tensors: Iterable[TensorSource], shard_bytes: int) -> dict[str, TensorEntry]:
    """Write the shards; their final names hold their number, so they get them at the end."""
    seen: set[str] = set()
    parts: list[dict[str, TensorEntry]] = []
    shard = _Shard()
    for name, dtype, shape, buffer in tensors:
        if name in seen:
            raise BugError(f"tensor {name!r} was given twice")
        seen.add(name)
        data = _bytes_of(name, buffer)
        expected = byte_size(name, dtype, shape)
        if data.nbytes != expected:
            raise BugError(f"tensor {name!r} of {dtype} {list(shape)} takes {expected} bytes, got {data.nbytes}")
        if shard.tensors and shard.size + data.nbytes > shard_bytes:
            parts.append(shard.write(staging / f"part-{len(parts)}"))
            shard = _Shard()
        shard.tensors.append((name, dtype, tuple(shape), data))
        shard.size += data.nbytes
    if not seen:
        raise BugError("a version without tensors can't be published")
    parts.append(shard.write(staging / f"part-{len(parts)}"))
    entries: dict[str, TensorEntry] = {}
    for index, part in enumerate(parts):
        shard_name = "model.safetensors"
        if len(parts) > 1:
            shard_name = f"model-{index + 1:05d}-of-{len(parts):05d}.safetensors"
        (staging / f"part-{index}").rename(staging / shard_name)
        entries |= {name: entry.model_copy(update={"shard": shard_name}) for name, entry in part.items()}
    if len(parts) > 1:
        index_file = {
            "metadata": {"total_size": sum(entry.length for entry in entries.values())},
            "weight_map": {name: entry.shard for name, entry in sorted(entries.items())},
        }
        _write(staging / INDEX_NAME, json.dumps(index_file, indent=1).encode())
    return entries


def _write_files(staging: Path, extra_files: Mapping[str, bytes | Path]) -> dict[str, str]:
    digests = {}
    for name, source in extra_files.items():
        reserved = name in (MANIFEST_NAME, INDEX_NAME) or name.endswith(".safetensors") or name.startswith("part-")
        if Path(name).name != name or name.startswith(".") or reserved:
            raise BugError(f"{name!r} can't be the name of a file beside the weights")
        content = source.read_bytes() if isinstance(source, Path) else source
        _write(staging / name, content)
        digests[name] = hashlib.sha256(content).hexdigest()
    return digests


def _bytes_of(name: str, buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise BugError(f"tensor {name!r} is not contiguous")
    return view.cast("B") if view.nbytes else memoryview(b"")


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    sync_file(path)


def _rename_new(staging: Path, target: Path) -> bool:
    """Give the finished directory its name; False when the name is taken (a directory with files can't be replaced)."""
    try:
        staging.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True
