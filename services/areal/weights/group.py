"""Buckets of a broadcast: a version's tensors in the order in which a process group carries them.

Trainer and server make the same buckets of the same manifest, so that only its digest has to be agreed on. In a bucket
the tensors lie one after the other, widest numbers first, so that each is aligned. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from areal.errors import DataError
from areal.weights.manifest import TensorEntry
from areal.weights.safetensors_format import DTYPE_BYTES

_TORCH = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """One tensor of a bucket."""

    name: str
    dtype: str  # torch's word
    shape: tuple[int, ...]
    length: int  # bytes
    xxh3: str  # of its bytes, as the manifest has it


@dataclass(frozen=True)
class Bucket:
    """Tensors that travel in one broadcast."""

    pieces: tuple[Piece, ...]

    @property
    def length(self) -> int:
        """Bytes of the broadcast."""
        return sum(piece.length for piece in self.pieces)


def buckets(tensors: Mapping[str, TensorEntry], bucket_bytes: int) -> list[Bucket]:
    """The broadcasts of a version, in their order. A bucket holds more than `bucket_bytes` only as a single tensor.

    Raises DataError for a tensor of a kind that engines don't take.
    """
    made: list[list[Piece]] = []
    room = 0
    for name in sorted(tensors, key=lambda name: (-DTYPE_BYTES[tensors[name].dtype], name)):
        entry = tensors[name]
        if entry.dtype not in _TORCH:
            raise DataError(f"tensor {name!r} has dtype {entry.dtype}, which no process group carries")
        piece = Piece(name, _TORCH[entry.dtype], entry.shape, entry.length, entry.xxh3)
        if not made or piece.length > room:
            made.append([])
            room = bucket_bytes
        made[-1].append(piece)
        room -= piece.length
    return [Bucket(tuple(pieces)) for pieces in made]
