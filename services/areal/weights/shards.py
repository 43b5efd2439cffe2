"""Shard files of a version: the safetensors files of one writer, checksummed while they are written.

Several writers (the trainer's ranks) each write their own files into one staging directory; what they wrote is told by
a `ShardPart`, small enough to be sent to the one that seals the version. The tensors of one file are held at a time: an
iterable making tensors on demand bounds memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeAlias

import xxhash
from pydantic import BaseModel, ConfigDict
from typing_extensions import Buffer

from areal.errors import BugError
from areal.files import sync_file
from areal.weights import delta
from areal.weights.manifest import DeltaEntry, TensorEntry
from areal.weights.safetensors_format import DTYPE_BYTES, TensorHeader, byte_size, encode_header

DEFAULT_SHARD_BYTES = 2 << 30  # also what a writer without buffers of its own holds in memory at once
PART_PREFIX = "part-"
_BLOCK_BYTES = 1 << 22  # hashed and written while it is in the processor's cache

TensorSource: TypeAlias = tuple[str, str, Sequence[int], Buffer]
"""Name, safetensors dtype, shape, contiguous little-endian bytes."""


class ShardPart(BaseModel):
    """What one writer put into the staging directory: its files in order, each with its tensors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: tuple[Mapping[str, TensorEntry], ...]


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
        with path.open("wb", buffering=0) as file:
            _write_all(file, memoryview(head))
            for header, (name, dtype, shape, data) in zip(headers, ordered, strict=True):
                digest = xxhash.xxh3_128()
                for start in range(0, data.nbytes, _BLOCK_BYTES):
                    block = data[start : start + _BLOCK_BYTES]
                    digest.update(block)
                    _write_all(file, block)
                entries[name] = TensorEntry(
                    shard=path.name,
                    offset=len(head) + header.start,
                    length=data.nbytes,
                    dtype=dtype,
                    shape=shape,
                    xxh3=digest.hexdigest(),
                )
        sync_file(path)
        return entries


def write_part(
    staging: Path, writer: int, tensors: Iterable[TensorSource], shard_bytes: int = DEFAULT_SHARD_BYTES
) -> ShardPart:
    """Write one writer's tensors into `staging`, durably. Their files get their final names when the version is sealed.

    Raises BugError for a tensor that can't be written as it is described, OSError when the volume fails.
    """
    seen: set[str] = set()
    files: list[dict[str, TensorEntry]] = []
    shard = _Shard()

    def end_file() -> None:
        files.append(shard.write(staging / part_name(writer, len(files))))

    for name, dtype, shape, buffer in tensors:
        if name in seen:
            raise BugError(f"tensor {name!r} was given twice")
        seen.add(name)
        data = _bytes_of(name, buffer)
        expected = byte_size(name, dtype, shape)
        if data.nbytes != expected:
            raise BugError(f"tensor {name!r} of {dtype} {list(shape)} takes {expected} bytes, got {data.nbytes}")
        if shard.tensors and shard.size + data.nbytes > shard_bytes:
            end_file()
            shard = _Shard()
        shard.tensors.append((name, dtype, tuple(shape), data))
        shard.size += data.nbytes
    if shard.tensors:
        end_file()
    return ShardPart(files=tuple(files))


class TensorChange(BaseModel):
    """One tensor of a delta: what it becomes, and where the change lies; None when it stays."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    xxh3: str  # of the new bytes
    delta: DeltaEntry | None


class DeltaPart(BaseModel):
    """What one writer put into the staging directory of a delta, by tensor."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    changes: Mapping[str, TensorChange]


def write_delta(staging: Path, writer: int, base: Mapping[str, Buffer], tensors: Iterable[TensorSource]) -> DeltaPart:
    """Write how one writer's tensors differ from `base`, which has the same names and sizes, durably."""
    changes: dict[str, TensorChange] = {}
    path = staging / f"delta-{writer:05d}.bin"
    with path.open("wb") as file:
        for name, _, _, buffer in tensors:
            data = _bytes_of(name, buffer)
            encoded = delta.encode(_bytes_of(name, base[name]), data)
            entry = None
            if encoded is not None:
                encoding, payload = encoded
                digest = xxhash.xxh3_128_hexdigest(payload)
                place = file.tell()
                entry = DeltaEntry(file=path.name, offset=place, length=len(payload), xxh3=digest, encoding=encoding)
                file.write(payload)
            changes[name] = TensorChange(xxh3=xxhash.xxh3_128_hexdigest(data), delta=entry)
    sync_file(path)
    return DeltaPart(changes=changes)


def part_name(writer: int, number: int) -> str:
    """A file's name until the version is sealed."""
    return f"{PART_PREFIX}{writer}-{number}"


def _bytes_of(name: str, buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise BugError(f"tensor {name!r} is not contiguous")
    return view.cast("B") if view.nbytes else memoryview(b"")


def _write_all(file: BinaryIO, data: memoryview) -> None:
    """An unbuffered file may take less than it was given."""
    while data.nbytes:
        data = data[file.write(data) :]
