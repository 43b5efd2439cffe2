"""A message between ranks: named numpy arrays and a JSON header, as one tensor of bytes. Never a pickle."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_HEAD = struct.Struct("<q")  # bytes of the JSON that follows


@dataclass(frozen=True)
class RankMessage:
    """What one rank tells others."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[np.generic]]


def encoded(message: RankMessage) -> Tensor:
    """The message as bytes, [size] uint8."""
    arrays = {name: np.ascontiguousarray(array) for name, array in message.arrays.items()}
    layout = [(name, array.dtype.str, list(array.shape)) for name, array in arrays.items()]
    head = json.dumps({"header": message.header, "arrays": layout}).encode()
    raw = bytearray().join((_HEAD.pack(len(head)), head, *(array.tobytes() for array in arrays.values())))
    return torch.frombuffer(raw, dtype=torch.uint8)


def decoded(raw: Tensor) -> RankMessage:
    """The reverse of `encoded`."""
    data: NDArray[np.uint8] = raw.numpy()
    start = _HEAD.size
    (size,) = _HEAD.unpack(data[:start].tobytes())
    described: Mapping[str, Any] = json.loads(data[start : start + size].tobytes())
    start += size
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, dtype, shape in described["arrays"]:
        size = int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(data[start : start + size].tobytes(), dtype=dtype).reshape(shape)
        start += size
    return RankMessage(described["header"], arrays)
