"""Several sources in one dataset: their shares, their rows' places, and an order that needs no history."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import orjson
import pytest
from areal.data import JsonlSource, Snapshot, prepare, source_from_spec
from areal.data.order import RowOrder, SourceShare, SourceVisit, cycle_of, row_of
from areal.data.source import MixedSource
from areal.errors import DataError
from areal.spec.sources import TrainSource
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

weights = st.lists(st.sampled_from([0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 7.5, 40.0]), min_size=1, max_size=6)


def files(folder: Path, *counts: int) -> tuple[JsonlSource, ...]:
    made = []
    for number, count in enumerate(counts):
        path = folder / f"{number}.jsonl"
        path.write_bytes(b"".join(orjson.dumps({"prompt": f"{number}.{row}"}) + b"\n" for row in range(count)))
        made.append(JsonlSource(path))
    return tuple(made)


@settings(max_examples=examples(100), deadline=None)
@given(given_weights=weights)
def test_no_source_is_ever_a_whole_place_from_its_weight(given_weights: list[float]) -> None:
    cycle = cycle_of(given_weights)
    assert len(cycle) <= 4096
    counts = [0] * len(given_weights)
    for place, source in enumerate(cycle, start=1):
        counts[source] += 1
        for weight, count in zip(given_weights, counts, strict=True):
            assert abs(count - place * weight / sum(given_weights)) < len(given_weights)
    for weight, count in zip(given_weights, counts, strict=True):
        assert abs(count / len(cycle) - weight / sum(given_weights)) < 1e-3


def test_a_cycle_is_as_short_as_the_weights_allow_and_never_longer_than_its_bound() -> None:
    assert cycle_of([2.0, 1.0]) == (0, 1, 0)
    assert cycle_of([0.3, 0.1]) == (0, 0, 1, 0)
    assert len(cycle_of([1.0, 3.14159265])) == 4096
    with pytest.raises(ValueError, match="source 1 has a share of less"):
        cycle_of([4095.5, 0.25])


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_visits_of_a_source_are_dense_and_known_without_the_groups_before(data: st.DataObject) -> None:
    given_weights = data.draw(weights)
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=len(given_weights), max_size=len(given_weights)))
    shares = tuple(SourceShare(size, weight) for size, weight in zip(sizes, given_weights, strict=True))
    groups = data.draw(st.integers(1, 300))
    seen: Counter[int] = Counter()
    for group in range(groups):
        visit = RowOrder(shares, seed=3).visit(group)
        assert visit == SourceVisit(visit.source, seen[visit.source])
        seen[visit.source] += 1


def test_each_source_visits_all_its_rows_before_one_comes_again() -> None:
    order = RowOrder((SourceShare(5, 2.0), SourceShare(3, 1.0)), seed=1)
    used = Counter(order.row(group) for group in range(45))  # 30 of the first, 15 of the second
    assert used == {**dict.fromkeys(range(5), 6), **dict.fromkeys(range(5, 8), 5)}


def test_one_source_has_the_order_that_it_always_had() -> None:
    order = RowOrder((SourceShare(10),), seed=42)
    assert [order.row(group) for group in range(30)] == [row_of(group, 10, 42) for group in range(30)]


def test_a_snapshot_of_several_sources_has_their_rows_one_after_another_and_knows_their_places(tmp_path: Path) -> None:
    source = MixedSource(files(tmp_path, 2, 3), (3.0, 1.0))
    prepare(source, tmp_path / "out", required=("prompt",))
    snapshot = Snapshot(tmp_path / "out")
    assert [row["prompt"] for row in snapshot] == ["0.0", "0.1", "1.0", "1.1", "1.2"]
    assert [snapshot.place(row) for row in (1, 2)] == [f"{tmp_path}/0.jsonl, row 2", f"{tmp_path}/1.jsonl, row 1"]
    order = snapshot.order(seed=0)
    assert Counter(order.row(group) < 2 for group in range(40)) == {True: 30, False: 10}


def test_a_source_without_rows_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1\.jsonl has no rows"):
        prepare(MixedSource(files(tmp_path, 2, 0), (1.0, 1.0)), tmp_path / "out")


def test_rows_that_are_left_out_are_counted_by_reason(tmp_path: Path) -> None:
    def odd(place: str, row: object) -> str | None:
        return "they are odd" if place.endswith(("1", "3")) else None

    (source,) = files(tmp_path, 4)
    snapshot = prepare(source, tmp_path / "out", left_out=odd)
    assert [row["prompt"] for row in snapshot] == ["0.1", "0.3"]
    assert Snapshot(tmp_path / "out").meta.left_out == {"they are odd": 2}
    with pytest.raises(DataError, match=r"all 4 rows of .*0\.jsonl are left out"):
        prepare(source, tmp_path / "none", left_out=lambda place, row: "all")


def test_the_job_names_several_sources_with_weights(tmp_path: Path) -> None:
    given = {"sources": [{"jsonl": "a.jsonl", "weight": 2}, {"jsonl": "b.jsonl"}]}
    source = source_from_spec(TrainSource.model_validate(given), base_dir=tmp_path, recipe=None, split="train")
    assert source == MixedSource((JsonlSource(tmp_path / "a.jsonl"), JsonlSource(tmp_path / "b.jsonl")), (2.0, 1.0))
