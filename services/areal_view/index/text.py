"""Text of a recorded sequence: the bytes of its tokens and where each token ends, so that no reader detokenises."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from itertools import accumulate

from areal.v1 import record_pb2 as record


def sequence_text(pieces: Iterable[bytes]) -> record.SequenceText:
    """The text of a sequence whose tokens stand for `pieces`."""
    known = list(pieces)
    ends = array("I", accumulate(map(len, known)))
    if sys.byteorder == "big":
        ends.byteswap()
    return record.SequenceText(text=b"".join(known), token_ends=ends.tobytes())
