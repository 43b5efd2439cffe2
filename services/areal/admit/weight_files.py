"""The weight files of a model directory by their headers: whether each is whole, and how many numbers they hold."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal.errors import DataError

_HEADER_BYTES = 100 << 20  # the format's own limit
_FIX = "copy or download the model again"


@dataclass(frozen=True)
class WeightFiles:
    """What a model directory holds."""

    parameters: int
    size_bytes: int
    matrices: frozenset[str]  # last part of their modules' names: q_proj, embed_tokens, …


def look_at_weights(model: Path) -> WeightFiles:
    """Read the headers of all `*.safetensors`; raises DataError for a file that is cut off or none of that format."""
    parameters = size = 0
    matrices: set[str] = set()
    for file in sorted(model.glob("*.safetensors")):
        size += file.stat().st_size
        tensors = _tensors(file)
        parameters += sum(math.prod(tensor["shape"]) for tensor in tensors.values())
        matrices |= {name.split(".")[-2] for name, each in tensors.items() if len(each["shape"]) == 2 and "." in name}
    return WeightFiles(parameters, size, frozenset(matrices))


def _tensors(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 0 < length <= _HEADER_BYTES:
                raise ValueError("its header has no length")
            header = json.loads(opened.read(length))
        tensors = {name: each for name, each in header.items() if name != "__metadata__"}
        needed = 8 + length + max((each["data_offsets"][1] for each in tensors.values()), default=0)
    except OSError as error:
        raise DataError(f"{file} can't be read: {error.strerror}", fix="check the file's permissions") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{file} is no safetensors file: {error}", fix=_FIX) from None
    if (there := file.stat().st_size) < needed:
        raise DataError(f"{file} is cut off: it has {there} of {needed} bytes", fix=_FIX)
    return tensors
