"""Segment files of the recording: append-only frames with a fixed header, checksummed, compressed.

Owns the format: a frame is a header of 64 bytes and one protobuf message, as a zstd frame when that is worth it. The
header says what an index needs, so that one is built without opening a record. A frame that is torn or damaged ends the
reading of its segment at that place: nothing after it is guessed at.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from pathlib import Path

import xxhash
import zstandard

from areal.v1 import record_pb2 as record

SUFFIX = ".rec"
MAX_BODY = 256 << 20
"""No record is larger: a header that claims more is damaged, and must not make a reader allocate it."""

_PLAIN, _ZSTD = b"ARC0", b"ARC1"
COMPRESS_FROM_BYTES = 2048
"""Below this zstd saves little and costs more than all the rest of a record."""

_HEAD = struct.Struct("<4sBBHQIIdIIqQ")  # 56 bytes; the checksum of these follows
HEADER_BYTES = _HEAD.size + 8


class FrameKind(IntEnum):
    """Which message a frame holds."""

    SAMPLE = 1
    EVALUATION = 2  # a SampleRecord of an evaluation's row
    STEP = 3
    TOKENS = 4
    GENERATION = 5
    BATCH = 6
    CLOSED = 7  # the last of its writer, without a message; `tokens` tells how many records were dropped


OUTCOMES = ("complete", "truncated", "deadline", "rejected", "exception", "hang", "infra")
"""How an episode ended; a header holds the position."""


@dataclass(frozen=True, slots=True)
class Header:
    """What is known of a record without opening it."""

    kind: FrameKind
    group: int = 0  # of tokens: the first
    index: int = 0  # of tokens: the fence
    step: int = 0  # of steps and tokens
    reward: float = 0.0
    tokens: int = 0
    version: int = (
        -1
    )  # of a sample: the newest policy version of its tokens; of a step: the fence; of tokens: the last group
    outcome: int = 0  # position in OUTCOMES
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame in a segment: its header, where it begins, and the length of its body."""

    header: Header
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + HEADER_BYTES + self.length


def pack(header: Header, message: bytes) -> bytes:
    """A frame ready to append."""
    large = len(message) >= COMPRESS_FROM_BYTES
    body = zstandard.compress(message, 1) if large else message
    head = _HEAD.pack(
        _ZSTD if large else _PLAIN,
        header.kind,
        header.outcome,
        header.sequence,
        header.group,
        header.index,
        header.step,
        header.reward,
        header.tokens,
        len(body),
        header.version,
        xxhash.xxh3_64_intdigest(body),
    )
    return head + xxhash.xxh3_64_digest(head) + body


def frames(path: Path, offset: int = 0) -> Iterator[Frame]:
    """The whole frames of a segment from `offset` on, headers only; stops at the first that is torn or damaged."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        size = file.seek(0, 2)
        while offset + HEADER_BYTES <= size:
            file.seek(offset)
            found = _read_header(file.read(HEADER_BYTES), offset)
            if found is None or found.end > size:
                return
            yield found
            offset = found.end


def read(path: Path, offset: int) -> bytes | None:
    """The message of the frame at `offset`; None when it is gone, torn or damaged."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            raw = file.read(HEADER_BYTES)
            found = _read_header(raw, offset)
            if found is None:
                return None
            body = file.read(found.length)
    except OSError:
        return None
    if len(body) != found.length or xxhash.xxh3_64_intdigest(body) != _HEAD.unpack_from(raw)[-1]:
        return None
    if raw.startswith(_PLAIN):
        return body
    try:
        if zstandard.get_frame_parameters(body).content_size > MAX_BODY:
            return None
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=MAX_BODY)
    except zstandard.ZstdError:
        return None


def _read_header(raw: bytes, offset: int) -> Frame | None:
    if len(raw) != HEADER_BYTES or xxhash.xxh3_64_digest(raw[: _HEAD.size]) != raw[_HEAD.size :]:
        return None
    magic, kind, outcome, sequence, group, index, step, reward, tokens, length, version, _ = _HEAD.unpack_from(raw)
    if magic not in (_PLAIN, _ZSTD) or kind not in tuple(FrameKind) or length > MAX_BODY or outcome >= len(OUTCOMES):
        return None
    return Frame(
        Header(FrameKind(kind), group, index, step, reward, tokens, version, outcome, sequence), offset, length
    )


def sequence_text(pieces: Iterable[bytes]) -> record.SequenceText:
    """The text of a sequence whose tokens stand for `pieces`: with each token's end, so that no reader detokenises."""
    known = list(pieces)
    ends = array("I", accumulate(map(len, known)))
    if sys.byteorder == "big":
        ends.byteswap()
    return record.SequenceText(text=b"".join(known), token_ends=ends.tobytes())
