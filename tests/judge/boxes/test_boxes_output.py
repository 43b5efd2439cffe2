"""The bounded buffer of a command's output, and which processes are below another."""

from __future__ import annotations

import re

from areal_judge.boxes.driver.processes import below
from areal_judge.boxes.driver.worker import HeadAndTail
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.binary(max_size=40)), st.integers(1, 60))
def test_beginning_and_end_stay_and_the_rest_is_counted(chunks: list[bytes], most: int) -> None:
    kept, whole = HeadAndTail(most), b"".join(chunks)
    for chunk in chunks:
        kept.add(chunk)
    if len(whole) <= most:
        assert kept.bytes() == whole
        return
    assert kept.left_out == len(whole) - most
    head, tail = re.split(rb"\n\[\xe2\x80\xa6 \d+ bytes left out \xe2\x80\xa6\]\n", kept.bytes(), maxsplit=1)
    assert head == whole[: (most + 1) // 2]
    assert whole.endswith(tail)
    assert len(head) + len(tail) == most


def test_processes_below_one_leave_out_the_spared_and_theirs() -> None:
    parent_of = {2: 1, 3: 2, 4: 2, 5: 4, 6: 3, 7: 1}
    assert sorted(below(2, parent_of, frozenset())) == [3, 4, 5, 6]
    assert sorted(below(2, parent_of, frozenset({4}))) == [3, 6]
    assert below(9, parent_of, frozenset()) == []
