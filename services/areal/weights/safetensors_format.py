"""The safetensors file format: a length, a JSON header, the tensors' bytes without gaps.

Owns reading and writing of headers, and which files of a directory are the model's; data is written by the publisher.
Knows dtypes by name and size only.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from areal.errors import BugError, DataError

DTYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
INDEX_NAME = "model.safetensors.index.json"
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation


@dataclass(frozen=True)
class TensorHeader:
    """One tensor of a file. `start` and `end` are bytes from the beginning of the data, after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def byte_size(name: str, dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor; raises BugError for a dtype that the format doesn't know."""
    if dtype not in DTYPE_BYTES:
        raise BugError(f"tensor {name!r} has dtype {dtype!r}, unknown to safetensors: {', '.join(DTYPE_BYTES)}")
    return math.prod(shape) * DTYPE_BYTES[dtype]


def encode_header(tensors: Sequence[TensorHeader]) -> bytes:
    """The bytes before the data, padded so that the data starts at a multiple of 8."""
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}  # without it transformers refuses the file
    for tensor in tensors:
        table[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [tensor.start, tensor.end],
        }
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def read_header(path: Path) -> tuple[int, list[TensorHeader]]:
    """Offset of a file's data, and its tensors. Raises DataError when the header is no safetensors header."""
    wrong = f"{path} is no safetensors file"
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 2 <= length <= _MAX_HEADER_BYTES:
            raise DataError(f"{wrong}: its header claims {length} bytes")
        raw = file.read(length)
    try:
        table = json.loads(raw)
        table.pop("__metadata__", None)
        tensors = [
            TensorHeader(name, entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])
            for name, entry in table.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{wrong}: its header is unreadable ({error})") from error
    return _LENGTH_BYTES + length, tensors


def read_index(model: Path) -> dict[str, str] | None:
    """Which file of a model directory holds which tensor, by its index; None without one.

    Raises DataError for an index that says nothing of that kind.
    """
    file = model / INDEX_NAME
    if not file.is_file():
        return None
    try:
        table = json.loads(file.read_bytes())["weight_map"]
        return {str(name): str(holder) for name, holder in table.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{file} is no index of weights: {error!r}", fix="copy or download the model again") from None


def model_files(model: Path) -> list[Path]:
    """The files that hold a model's weights: those that its index names, else all but a second, consolidated copy."""
    if (index := read_index(model)) is not None:
        return [model / name for name in sorted(set(index.values()))]
    found = sorted(model.glob("*.safetensors"))
    return [file for file in found if not file.name.startswith("consolidated")] or found
