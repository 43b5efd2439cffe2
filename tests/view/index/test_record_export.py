"""Exports of recorded samples: each form has the recording's own tokens and figures."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from areal.cli.main import app, guarded
from areal.v1 import common_pb2 as common
from areal_view.index.atif import trajectory
from areal_view.index.forms import written
from areal_view.index.record_index import RecordIndex
from support.recorded_run import ANSWER, RecordedRun, made_sample


@pytest.fixture
def recorded(tmp_path: Path) -> RecordedRun:
    run = RecordedRun(tmp_path / "run")
    run.train(0)
    return run


@pytest.fixture
def index(recorded: RecordedRun, tmp_path: Path) -> Iterator[RecordIndex]:
    found = RecordIndex(tmp_path / "index.sqlite", recorded.directories).refresh(60)
    yield found
    found.close()


def test_a_trajectory_has_what_was_fed_and_what_was_sampled(recorded: RecordedRun, index: RecordIndex) -> None:
    told = [json.loads(line) for line in written("atif", index, index.find(), "digits")]
    assert {one["session_id"] for one in told} == {f"digits/{g}.{i}" for g, i in recorded.samples}
    for one in told:
        group, number = map(int, one["session_id"].removeprefix("digits/").split("."))
        made = recorded.samples[group, number]
        text, sequence = made.texts[0].text.decode(), made.sample.sequences[0]
        fed, answer = one["steps"]
        assert (fed["source"], fed["message"]) == ("user", text[:ANSWER])
        assert (answer["source"], answer["message"], answer["model_name"]) == ("agent", text[ANSWER:], "0.f1")
        metrics = answer["metrics"]
        assert metrics["completion_token_ids"] == np.frombuffer(sequence.token_ids, "<i4")[ANSWER:].tolist()
        assert metrics["logprobs"] == np.frombuffer(sequence.logprobs, "<f4")[ANSWER:].tolist()
        assert (metrics["prompt_tokens"], one["extra"]["reward"]) == (ANSWER, made.reward)


def test_spans_that_touch_are_one_turn_and_those_between_are_the_user_s() -> None:
    made = made_sample(1, 0, letters="abcdefghij")
    spans = [(3, 5, "0.f1"), (5, 6, "1.f1"), (8, 9, "1.f1")]
    del made.sample.sequences[0].spans[:]
    for start, end, policy in spans:
        made.sample.sequences[0].spans.append(common.Span(start=start, end=end, policy_id=policy, server_id="s"))
    steps = trajectory(made, 0, "digits")["steps"]
    assert [(one["source"], one["message"]) for one in steps] == [
        ("user", "abc"), ("agent", "def"), ("user", "gh"), ("agent", "i"), ("user", "j"),
    ]  # fmt: skip
    assert [one["step_id"] for one in steps] == [1, 2, 3, 4, 5]
    assert steps[1]["model_name"] == "1.f1"


@pytest.mark.component
def test_a_parquet_file_has_the_rows_of_the_json_lines(index: RecordIndex) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    whole = b"".join(written("parquet", index, index.find(), "digits"))
    rows = parquet.read_table(io.BytesIO(whole)).to_pylist(maps_as_pydicts="strict")
    assert rows == [json.loads(line) for line in written("jsonl", index, index.find(), "digits")]
    assert len(rows) == 6


def test_a_script_is_told_what_was_written(
    recorded: RecordedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (recorded.root / "resolved.json").write_text("{}")
    file = tmp_path / "samples.jsonl"
    assert guarded(lambda: app(["export", str(recorded.root), "--out", str(file), "--json"])) == 0
    assert json.loads(capsys.readouterr().out) == {"samples": len(file.read_text().splitlines()), "file": str(file)}
    assert guarded(lambda: app(["export", str(recorded.root), "--json"])) == 64
    assert "--out samples.jsonl" in json.loads(capsys.readouterr().out)["fix"]
