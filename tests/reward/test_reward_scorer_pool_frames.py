"""Messages survive any way a stream is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from areal.errors import InfraError
from areal.reward.scorer_pool import frames
from hypothesis import given
from hypothesis import strategies as st


@given(
    messages=st.lists(st.lists(st.integers(0, 9) | st.text(), max_size=5), max_size=5),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_any_cut_of_the_stream_gives_the_same_messages(messages: list[list[object]], cuts: list[int]) -> None:
    stream = b"".join(frames.encode(message) for message in messages)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = frames.FrameReader()
    received = [m for a, b in pairwise(edges) for m in reader.feed(stream[a:b])]
    assert received == messages


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(InfraError):
        frames.FrameReader().feed(b"\xff\xff\xff\xff")
    with pytest.raises(InfraError):
        frames.FrameReader().feed(b"\x03\x00\x00\x00abc")
