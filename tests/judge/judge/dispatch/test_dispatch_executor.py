"""Answers of executions: what a message can't carry is the program's failure, not a full queue."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.net.channel import MAX_MESSAGE_BYTES
from areal_judge.judge.dispatch.executor import ANSWER_BYTES, answer_of
from areal_judge.judge.values import Status
from areal_judge.sandbox.values import Ending, RunEnding
from areal_judge.server.wire import executed_to_wire

RAN = RunEnding(Ending.EXITED, exit_code=0)


@pytest.mark.parametrize(
    ("ended", "status", "words"),
    [
        (replace(RAN, files={"a": bytes(1 << 20)}, stdout=b"x"), Status.PASSED, ""),
        (replace(RAN, files={"a": bytes(9 << 20), "b": bytes(9 << 20)}), Status.DISK_LIMIT, "kept files have 18.0 MB"),
        (replace(RAN, files={"a": bytes(9 << 20)}, stdout=bytes(9 << 20)), Status.DISK_LIMIT, "beside the output"),
        (replace(RAN, stdout=bytes(20 << 20), files={"a": b"1"}), Status.OUTPUT_LIMIT, "the output has 20.0 MB"),
        (replace(RAN, exit_code=1, files={"a": bytes(ANSWER_BYTES)}), Status.DISK_LIMIT, "keep fewer"),
    ],
)
def test_an_answer_fits_into_a_message_and_says_what_did_not(ended: RunEnding, status: Status, words: str) -> None:
    executed = answer_of(ended)
    assert (executed.status, words in executed.message) == (status, True), executed.message
    assert executed_to_wire(executed, "r").ByteSize() < MAX_MESSAGE_BYTES
    assert bool(executed.message) == (status is not Status.PASSED)
    assert executed.ended is not None
    assert (executed.ended.files == ended.files) == (status is Status.PASSED)
