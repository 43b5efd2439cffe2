"""Payload codec: a compressed, checksummed envelope around a serialised `Sample`.

Owns compression and the checksum. A payload that was damaged on its way is a `DataError`, never a different sample.
"""

from collections.abc import Callable

import xxhash
import zstandard
from google.protobuf.message import DecodeError

from areal.errors import DataError
from areal.v1 import common_pb2 as common

COMPRESS_FROM_BYTES = 1024
"""Below this zstd saves less than a network frame's header costs."""

WORTH = 0.9
"""A compressed sample must be at least this much smaller, or reading it costs more than it saves."""

MAX_RAW_BYTES = 1 << 30
"""No sample is larger; a bigger claim in an envelope is damage, and must not make the reader allocate it."""

ReadSegment = Callable[[common.SegmentPointer], bytes]


def encode(sample: common.Sample) -> bytes:
    """The sample in its envelope: raw when small, zstd when it pays, always with the xxh3 of the raw bytes."""
    raw = sample.SerializeToString(deterministic=True)
    codec, body = common.CODEC_RAW, raw
    if len(raw) >= COMPRESS_FROM_BYTES:
        squeezed = zstandard.compress(raw, 1)
        if len(squeezed) < WORTH * len(raw):
            codec, body = common.CODEC_ZSTD, squeezed
    envelope = common.Payload(codec=codec, xxh3=xxhash.xxh3_64_intdigest(raw), raw_bytes=len(raw), inline=body)
    return envelope.SerializeToString()


def decode(payload: bytes, read_segment: ReadSegment | None = None) -> common.Sample:
    """The sample of an envelope.

    `read_segment` fetches the body of a payload that points into a segment file. Raises `DataError` when anything about
    it is not as it was written.
    """
    raw = decode_raw(payload, read_segment)
    try:
        return common.Sample.FromString(raw)
    except DecodeError as error:
        raise damaged("its checksum is right but it is no Sample") from error


def decode_raw(payload: bytes, read_segment: ReadSegment | None = None) -> bytes:
    """The serialised sample of an envelope, checked as `decode` does."""
    envelope = _envelope(payload)
    if (place := envelope.WhichOneof("place")) == "segment":
        if read_segment is None:
            raise damaged(f"it is a pointer into {envelope.segment.file!r}, and no segments are read here")
        body = read_segment(envelope.segment)
    elif place == "inline":
        body = envelope.inline
    else:
        raise damaged("it has no body")
    raw = _unpack(envelope, body)
    if len(raw) != envelope.raw_bytes or xxhash.xxh3_64_intdigest(raw) != envelope.xxh3:
        raise damaged("its checksum differs")
    return raw


def digest(payload: bytes) -> int:
    """The xxh3 of the sample, as its envelope states it."""
    return _envelope(payload).xxh3


def damaged(what: str) -> DataError:
    """A payload that is not what was stored."""
    return DataError(
        f"a stored sample is damaged: {what}", fix="tombstone its group, and check the replay store's disk"
    )


def _envelope(payload: bytes) -> common.Payload:
    try:
        return common.Payload.FromString(payload)
    except DecodeError as error:
        raise damaged("its envelope can't be read") from error


def _unpack(envelope: common.Payload, body: bytes) -> bytes:
    if envelope.codec == common.CODEC_RAW:
        return body
    if envelope.codec != common.CODEC_ZSTD:
        raise damaged(f"its codec {envelope.codec} is unknown")
    if envelope.raw_bytes > MAX_RAW_BYTES:
        raise damaged(f"it claims {envelope.raw_bytes} bytes")
    try:
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=envelope.raw_bytes)
    except zstandard.ZstdError as error:
        raise damaged("it can't be decompressed") from error
