"""Frames of a segment: what was packed is read, and damage is never guessed at."""

from __future__ import annotations

from pathlib import Path

from areal.record import segment
from areal.record.segment import HEADER_BYTES, Frame, FrameKind, Header, frames, pack, read
from hypothesis import given
from hypothesis import strategies as st

headers = st.builds(
    Header,
    kind=st.sampled_from(FrameKind),
    group=st.integers(0, 2**64 - 1),
    index=st.integers(0, 2**32 - 1),
    step=st.integers(0, 2**32 - 1),
    reward=st.floats(allow_nan=False),
    tokens=st.integers(0, 2**32 - 1),
    version=st.integers(-(2**63), 2**63 - 1),
    outcome=st.integers(0, 6),
    sequence=st.integers(0, 255),
)


def written(path: Path, *records: tuple[Header, bytes]) -> list[Frame]:
    path.write_bytes(b"".join(pack(header, body) for header, body in records))
    return list(frames(path))


@given(records=st.lists(st.tuples(headers, st.binary(max_size=300)), max_size=5))
def test_what_was_packed_is_read(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("segment") / "a.rec"
    found = written(path, *records)
    assert [frame.header for frame in found] == [header for header, _ in records]
    assert [read(path, frame.offset) for frame in found] == [body for _, body in records]


def test_a_torn_frame_ends_the_reading(tmp_path):
    path = tmp_path / "a.rec"
    first, second = written(path, (Header(FrameKind.SAMPLE, 1), b"one"), (Header(FrameKind.SAMPLE, 2), b"two" * 40))
    whole = path.read_bytes()
    for cut in range(first.end, second.end):
        path.write_bytes(whole[:cut])
        assert [frame.header.group for frame in frames(path)] == [1]
        assert read(path, first.offset) == b"one"


def test_reading_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "a.rec"
    first, second = written(path, (Header(FrameKind.SAMPLE, 1), b"one"), (Header(FrameKind.SAMPLE, 2), b"two"))
    assert list(frames(path, first.end)) == [second]
    assert list(frames(path, second.end)) == []


def test_no_flipped_bit_is_believed(tmp_path):
    path = tmp_path / "a.rec"
    body = b"the body of a record, " * 4
    written(path, (Header(FrameKind.SAMPLE, 1), body))
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        found = list(frames(path))
        assert not found or place >= HEADER_BYTES
        assert read(path, 0) is None


def test_a_file_that_is_no_segment_has_no_frames(tmp_path):
    path = tmp_path / "a.rec"
    path.write_bytes(b"ARC0" + b"\xff" * 4096)
    assert list(frames(path)) == []
    assert read(path, 0) is None
    assert read(tmp_path / "missing.rec", 0) is None
    assert list(frames(tmp_path / "missing.rec")) == []


def test_a_record_that_grows_beyond_all_bounds_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(segment, "MAX_BODY", 1_000)
    path = tmp_path / "a.rec"
    path.write_bytes(pack(Header(FrameKind.SAMPLE), bytes(1_001)))
    assert read(path, 0) is None
