"""Which row a group or an evaluation gets, and which set a row belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from areal.data import JsonlSource, prepare
from areal.data.order import row_of
from areal.errors import DataError
from areal.rollout.controller.main import blind_rows
from areal.rollout.controller.rows import PreparedRows
from areal.spec import RLJob


def prepared(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    source = folder / f"{name}.jsonl"
    source.write_bytes(b"\n".join(orjson.dumps(row) for row in rows) + b"\n")
    prepare(JsonlSource(source), folder / name)
    return folder / name


@pytest.fixture
def rows(tmp_path: Path) -> PreparedRows:
    train = prepared(tmp_path, "train", [{"prompt": f"{n}"} for n in range(5)])
    sets: list[Any] = ["easy", 7, "hard", "", True]
    held_out = prepared(tmp_path, "held-out", [{"prompt": f"e{n}", "kind": name} for n, name in enumerate(sets)])
    return PreparedRows(train, held_out, seed=3)


def test_a_group_has_the_row_of_its_place_in_the_order_and_says_where_that_is(rows: PreparedRows) -> None:
    for group in (0, 4, 5, 12):
        row = row_of(group, 5, 3)
        assert orjson.loads(rows.row(group)) == {"prompt": f"{row}"}
        assert rows.place(group).endswith(f"train.jsonl, row {row + 1}")
    assert {orjson.loads(rows.row(group))["prompt"] for group in range(5)} == {"0", "1", "2", "3", "4"}


def test_evaluation_rows_come_in_their_own_order_as_many_as_are_wanted_and_there(
    rows: PreparedRows, tmp_path: Path
) -> None:
    assert [orjson.loads(rows.evaluation_row(row))["prompt"] for row in (0, 4)] == ["e0", "e4"]
    assert [rows.evaluation_rows(wanted) for wanted in (None, 3, 5, 9)] == [5, 3, 5, 5]
    assert PreparedRows(tmp_path / "train", None, 3).evaluation_rows(9) == 0


def test_each_held_out_row_names_its_set_or_is_an_error_with_its_number(rows: PreparedRows) -> None:
    assert rows.evaluation_sets("kind", 3) == ("easy", "7", "hard")
    with pytest.raises(DataError, match="held-out row 3 names no set"):
        rows.evaluation_sets("kind", 4)
    with pytest.raises(DataError, match="held-out row 0 names no set"):
        rows.evaluation_sets("none", 1)


def test_a_truth_value_is_no_name_of_a_set(tmp_path: Path) -> None:
    train = prepared(tmp_path, "train", [{"prompt": "1"}])
    held_out = prepared(tmp_path, "held-out", [{"prompt": "2", "kind": True}])
    with pytest.raises(DataError, match="held-out row 0"):
        PreparedRows(train, held_out, 0).evaluation_sets("kind", 1)


class Held:
    """Evaluation rows of which the first so many have images."""

    def __init__(self, images: int) -> None:
        self._images = images

    def with_images(self, count: int, most: int) -> tuple[int, ...]:
        return tuple(range(min(count, most, self._images)))


@pytest.mark.parametrize(
    ("spec", "images", "rows"),
    [
        ({}, 0, 0),  # neither images nor tools
        ({}, 200, 128),
        ({"rollout": {"workflow": "agent", "agent": {"run": "Solver"}}}, 0, 32),
        ({"rollout": {"workflow": "agent", "agent": {"run": "Solver"}}}, 200, 128),
        ({"rollout": {"workflow": "environment", "environment": {"name": "mcp"}}}, 0, 32),
        ({"rollout": {"workflow": "agent", "agent": {"run": "Solver"}}, "evaluation": {"blind": False}}, 200, 0),
    ],
)
def test_rows_are_played_blind_where_there_may_be_something_to_see(spec: dict, images: int, rows: int) -> None:
    base = {
        "model": {"path": "m"}, "dataset": {"train": {"jsonl": "t"}},
        "algorithm": {"name": "GRPO", "batchSize": 8, "maxSteps": 1}, "optimizer": {"learningRate": 1e-5},
    }  # fmt: skip
    job = RLJob.model_validate(
        {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "x"}, "spec": {**base, **spec}}
    )
    assert len(blind_rows(job.spec, Held(images), 500)) == rows  # type: ignore[arg-type]
    assert len(blind_rows(job.spec, Held(images), 10)) == min(rows, 10)  # type: ignore[arg-type]
