"""Answers in a run's report: of the last step, from the worst to the best, with hostile text as text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from areal_view.index.record_index import RecordIndex
from areal_view.pages.site import last_answers, spread
from support.recorded_run import ANSWER, RecordedRun, made_sample


def test_answers_of_the_last_step_are_shown_by_reward(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path)
    hostile = made_sample(3, 0, version=1, letters="abcdef")
    hostile.texts[0].text = b"abc\x1b[2J<script>"
    hostile.texts[0].token_ends = np.array([1, 2, 3, 7, 8, 15], "<u4").tobytes()
    run.samples[3, 0] = hostile
    for step in range(2):
        run.train(step)
    index = RecordIndex(tmp_path / "index.sqlite", run.directories).refresh()
    shown = last_answers(index, 1)
    assert {one.group for one in shown} <= {3, 4, 5}
    assert [one.reward for one in shown] == sorted(one.reward for one in shown)
    for one in shown:
        text = run.samples[one.group, one.index].texts[0].text.decode()
        assert (one.prompt, one.answer) == (text[:ANSWER], text[ANSWER:].replace("\x1b", "␛"))
    assert last_answers(index, 9) == []


@pytest.mark.parametrize(("count", "chosen"), [(0, []), (3, [0, 1, 2]), (11, [0, 5, 10])])
def test_the_first_and_the_last_are_among_the_chosen(count: int, chosen: list[int]) -> None:
    assert spread(range(count), 3) == chosen
