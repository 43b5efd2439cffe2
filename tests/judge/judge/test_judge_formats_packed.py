"""LiveCodeBench's packed cases: bounded, and never unpickled."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any

import pytest
from areal.errors import DataError
from areal_judge.judge.formats import livecodebench
from areal_judge.judge.formats.livecodebench import pickled_text
from areal_judge.judge.formats.registry import suite_of
from hypothesis import given
from hypothesis import strategies as st

CASES = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("content", [Bomb(), [json.dumps(CASES)], json.dumps(CASES).encode(), [Bomb(), "[]"]])
def test_a_pickle_of_more_than_a_text_is_refused_unopened(content: Any, protocol: int) -> None:
    value = base64.b64encode(zlib.compress(pickle.dumps(content, protocol))).decode()
    with pytest.raises(DataError, match="holds a pickle") as refused:
        suite_of({"public_test_cases": CASES, "private_test_cases": value})
    assert "json.loads(pickle.loads" in refused.value.fix


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("cases", [1, 40, 9000])  # texts below 256 bytes, below a frame of 64 KiB, above it
def test_the_pickle_of_a_json_text_is_read_without_unpickling(monkeypatch, protocol: int, cases: int) -> None:
    value = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(CASES * cases), protocol))).decode()
    monkeypatch.setattr(pickle, "loads", lambda content: pytest.fail("a pickle was loaded"))
    assert livecodebench.unpacked(value, "private_test_cases") == CASES * cases


@given(text=st.text(max_size=300), protocol=st.integers(2, 5), data=st.data())
def test_a_text_comes_back_whole_and_a_damaged_pickle_is_no_other_text(text: str, protocol: int, data: Any) -> None:
    packed = pickle.dumps(text, protocol)
    assert pickled_text(packed) == text
    assert pickled_text(packed + packed) is None
    at = data.draw(st.integers(0, len(packed) - 1))
    assert pickled_text(packed[:at]) is None


@pytest.mark.parametrize(
    "value",
    [
        "!!!",
        base64.b64encode(b"no zlib").decode(),
        base64.b64encode(zlib.compress(b"[" * 9_999)[:-9]).decode(),
        base64.b64encode(zlib.compress(b"nothing")).decode(),
        base64.b64encode(zlib.compress(b"{}")).decode(),
    ],
)
def test_what_does_not_unpack_is_refused(value: str) -> None:
    with pytest.raises(DataError, match=r"row\.private_test_cases"):
        livecodebench.unpacked(value, "private_test_cases")


def test_unpacking_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livecodebench, "MAX_TEXT_CHARS", 1 << 20)
    bomb = base64.b64encode(zlib.compress(b" " * (2 << 20))).decode()
    with pytest.raises(DataError, match="unpacks to more than"):
        livecodebench.unpacked(bomb, "private_test_cases")
