"""Queries of samples: what they list, page by page, is what a filter over all samples gives."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from areal.record.segment import OUTCOMES
from areal.v1 import record_pb2 as record
from areal_view.index import record_index, sample_query
from areal_view.index.record_index import RecordIndex
from areal_view.index.sample_query import FIGURE, SampleQuery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.recorded_run import RecordedRun, made_sample, sample_frame, with_text

WORDS = ("red", "green", "blue")
SAMPLES = 300


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory):
    made = RecordedRun(tmp_path_factory.mktemp("run"))
    made.append("trajectories", "worker-0-1-000000", *map(sample_frame, SAMPLED))
    found = indexed(made)
    yield found
    found.close()


def samples() -> list[record.SampleRecord]:
    chance, made = np.random.default_rng(1), list[record.SampleRecord]()
    for place in range(SAMPLES):
        group = int(chance.integers(0, 90))
        one = made_sample(group, place % 4, seed=place, version=int(chance.integers(0, 12)))
        with_text(one, "count", " ".join(chance.choice(WORDS, 3)))
        one.outcome = OUTCOMES[int(chance.choice([0, 0, 0, 1, 6]))]
        one.evaluation_id = "7.f1-ab" if place % 10 == 0 else ""
        for name in ("format", "correct.x")[: int(chance.integers(0, 3))]:
            one.sample.verdict.figures[name] = int(chance.integers(0, 5)) / 4
        made.append(one)
    return made


SAMPLED = samples()


def indexed(run: RecordedRun) -> RecordIndex:
    """The whole of a recording, with its texts."""
    found = RecordIndex(run.root / "index.sqlite", run.directories, texts=True).refresh(60)
    deadline = time.monotonic() + 60
    while not found.progress.complete and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found.refresh(60).progress.complete
    return found


def limits(low: float, high: float):
    edge = st.one_of(st.none(), st.integers(int(4 * low), int(4 * high)).map(lambda quarter: quarter / 4))
    return st.tuples(edge, edge)


queries = st.builds(
    SampleQuery,
    evaluation=st.sampled_from(["", "7.f1-ab"]),
    outcome=st.sampled_from([None, "complete", "truncated", "infra"]),
    reward=limits(0, 1),
    version=limits(0, 12),
    figures=st.dictionaries(st.sampled_from(["format", "correct.x", "none"]), limits(0, 1), max_size=2),
    text=st.sampled_from(["", "red", "green blue", '"red green"', "Count RED", '"blue red" count']),
    order=st.sampled_from(["newest", "reward", "-reward", f"{FIGURE}format", f"-{FIGURE}correct.x"]),
)


def inside(value: float | None, span: tuple[float | None, float | None]) -> bool:
    low, high = span
    if span == (None, None):
        return True
    return value is not None and (low is None or value >= low) and (high is None or value <= high)


def says(one: record.SampleRecord, text: str) -> bool:
    columns = ["count", one.texts[0].text.decode().removeprefix("count")]
    terms = [term for n, part in enumerate(text.lower().split('"')) for term in ([part] if n % 2 else part.split())]
    return all(any(f" {term} " in f" {column} " for column in columns) for term in terms)


def fits(one: record.SampleRecord, query: SampleQuery) -> bool:
    figures = one.sample.verdict.figures
    name = query.order.lstrip("-").removeprefix(FIGURE)
    return (
        one.evaluation_id == query.evaluation
        and query.outcome in (None, one.outcome)
        and inside(one.reward, query.reward)
        and inside(one.newest_version, query.version)
        and all(inside(figures.get(part), span) for part, span in query.figures.items())
        and says(one, query.text)
        and (bool(query.text) or FIGURE not in query.order or name in figures)
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=queries, size=st.sampled_from([3, 40]))
def test_its_pages_have_every_sample_that_fits_once_and_in_order(index: RecordIndex, query: SampleQuery, size: int):
    rows, after = [], None
    while True:
        page = index.page(query, size, after)
        rows += page.rows
        if page.after is None:
            break
        assert page.after != after
        after = page.after
    assert len({row.place for row in rows}) == len(rows)
    expected = [one for one in SAMPLED if fits(one, query)]
    assert sorted((row.group, row.index, row.reward) for row in rows) == sorted(
        (one.sample.key.group, one.sample.key.index, one.reward) for one in expected
    )
    assert rows == index.listed(query, 10_000)
    if not query.text and query.order != "newest":
        keys = [row.reward if "reward" in query.order else row.figures[query.order.split(".", 1)[1]] for row in rows]
        assert keys == sorted(keys, reverse=query.order.startswith("-"))


def test_a_page_ends_in_good_time_and_the_next_goes_on(index: RecordIndex, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record_index, "_LOOK_S", -1.0)
    query, seen, after = SampleQuery(reward=(9.0, None)), 0, None
    while True:
        page = index.page(query, 5, after)
        assert page.rows == []
        if page.after is None:
            break
        after, seen = page.after, seen + 1
    assert seen == sum(not one.evaluation_id for one in SAMPLED)


def test_a_text_is_looked_for_window_by_window(index: RecordIndex, monkeypatch: pytest.MonkeyPatch):
    before = index.listed(SampleQuery(text='"red red red"'), 1_000)
    monkeypatch.setattr(record_index, "WINDOW", 7)
    assert index.listed(SampleQuery(text='"red red red"'), 1_000) == before != []


@pytest.mark.parametrize(
    "query",
    [
        SampleQuery(), SampleQuery(order="reward"), SampleQuery(order=f"-{FIGURE}format"), SampleQuery(version=(3, 5)),
        SampleQuery(outcome="infra"), SampleQuery(text="red"), SampleQuery(figures={"format": (1, None)}),
    ],
    ids=str,
)  # fmt: skip
def test_no_query_sorts_or_reads_the_whole_recording(index: RecordIndex, query: SampleQuery):
    found, filters, values = sample_query.walk_of(query)
    statement = found.statement(filters, None, ())
    plan = " ".join(row[3] for row in index._rows(f"EXPLAIN QUERY PLAN {statement}", *values, *found.values))
    assert "TEMP B-TREE" not in plan
    assert "SCAN s" not in plan.replace("SCAN words", "")


def test_words_of_forgotten_segments_are_found_no_more_and_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record_index, "_STALE", 3)
    run = RecordedRun(tmp_path)
    for segment in range(4):
        made = [with_text(made_sample(10 * segment + n, 0), "question", f"word{segment}") for n in range(5)]
        run.append("trajectories", f"worker-0-1-{segment:06d}", *map(sample_frame, made))
    index = indexed(run)
    assert [row.group for row in index.listed(SampleQuery(text="word1"), 9)] == [14, 13, 12, 11, 10]
    for segment in range(3):
        (run.root / "trajectories" / f"worker-0-1-{segment:06d}.rec").unlink()
    index.refresh()
    index.close()
    index = indexed(run)
    assert index.listed(SampleQuery(text="word1"), 9) == []
    assert len(index.listed(SampleQuery(text="word3"), 9)) == 5
    assert index._rows("SELECT COUNT(*) FROM words_docsize") == [(5,)]
    index.close()


def test_a_hostile_recording_s_figures_are_left_out(tmp_path: Path):
    run, one = RecordedRun(tmp_path), made_sample(1, 0)
    for name, value in {"good": 0.5, "nan": float("nan"), "inf": float("inf"), '"; DROP': 1.0, "$.x'": 1.0}.items():
        one.sample.verdict.figures[name] = value
    other = made_sample(2, 0)
    other.sample.verdict.figures.update({f"f{n}": 1.0 for n in range(1_000)})
    run.append("trajectories", "worker-0-1-000000", sample_frame(one), sample_frame(other))
    index = indexed(run)
    assert index.listed(SampleQuery(order=f"{FIGURE}good"), 9)[0].figures == {"good": 0.5}
    assert len(index.figures()) == 64
    index.close()
