"""Delta encoding of weights: what changed between two versions of a tensor, in 16-bit words, compressed with zstd.

After one step of reinforcement learning at a small learning rate about one bfloat16 weight in a hundred differs. A
tensor is either unchanged, a list of changed places (gaps between them and the exclusive or of old and new word,
stored by byte so that zeros meet zeros), or its new bytes as they are when much of it changed. Applying needs exactly
the base: who applies checks the result's checksum. Pure: bytes in, bytes out.
"""

from enum import StrEnum
from typing import cast

import numpy as np
import zstandard
from numpy.typing import NDArray

from areal.errors import DataError

_LEVEL = 1  # higher levels gain a tenth at several times the time
_PLACE_BYTES = 6  # four of the gap, two of the word, before compression
_MAX_SHARE = 0.125  # of changed words: above, the new bytes compress as well and apply faster


class Encoding(StrEnum):
    """How a tensor's change is stored."""

    SPARSE = "sparse"
    RAW = "raw"


def encode(base: memoryview, new: memoryview) -> tuple[Encoding, bytes] | None:
    """The change from `base` to `new`, two buffers of one length; None when they are the same bytes."""
    old, fresh = np.frombuffer(base, np.uint8), np.frombuffer(new, np.uint8)
    if old.size != fresh.size:
        raise ValueError(f"a delta is between buffers of one length, not of {old.size} and {fresh.size} bytes")
    if old.size % 2:
        return None if np.array_equal(old, fresh) else _raw(fresh)
    difference = old.view("<u2") ^ fresh.view("<u2")
    places = np.flatnonzero(difference)
    if not places.size:
        return None
    if places.size > difference.size * _MAX_SHARE:
        return _raw(fresh)
    gaps = np.diff(places, prepend=-1)
    if int(gaps.max()) >= 1 << 32:
        return _raw(fresh)
    planes = (
        gaps.astype("<u4").view(np.uint8).reshape(-1, 4).T,
        difference[places].astype("<u2").view(np.uint8).reshape(-1, 2).T,
    )
    return Encoding.SPARSE, _compress(np.concatenate(planes).tobytes())


def apply(target: memoryview, encoding: Encoding, payload: bytes) -> None:
    """Change `target`, which holds the base, into the new bytes, in place.

    Raises DataError when the payload is no delta of such a buffer.
    """
    out = np.frombuffer(target, np.uint8)
    try:
        raw = np.frombuffer(zstandard.ZstdDecompressor().decompress(payload), np.uint8)
    except zstandard.ZstdError as error:
        raise DataError(f"a delta can't be decompressed: {error}", fix="Publish a full version.") from error
    if encoding is Encoding.RAW:
        if raw.size != out.size:
            raise DataError(f"a delta holds {raw.size} bytes, the tensor {out.size}", fix="Publish a full version.")
        out[:] = raw
        return
    if raw.size % _PLACE_BYTES or out.size % 2:
        raise DataError("a delta is cut off", fix="Publish a full version.")
    planes = raw.reshape(_PLACE_BYTES, -1)
    places = np.cumsum(_joined(planes[:4], "<u4"), dtype=np.int64) - 1
    words = out.view("<u2")
    if places.size and (places[0] < 0 or int(places.max()) >= words.size):
        raise DataError("a delta names places outside of the tensor", fix="Publish a full version.")
    words[places] ^= _joined(planes[4:], "<u2").astype(np.uint16)


def _joined(planes: NDArray[np.uint8], dtype: str) -> NDArray[np.int64]:
    values = np.ascontiguousarray(planes.T).view(dtype).reshape(-1)
    return cast(NDArray[np.int64], values.astype(np.int64))


def _raw(fresh: NDArray[np.uint8]) -> tuple[Encoding, bytes]:
    return Encoding.RAW, _compress(fresh.tobytes())


def _compress(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(data)
