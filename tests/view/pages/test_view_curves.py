"""Curves: figures of any name, smoothed, cut and thinned; runs side by side with bands over their seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from areal_view.pages import app, overview
from areal_view.pages.app import app_of
from areal_view.pages.curves import (
    MOST_CHARTS,
    MOST_POINTS,
    CurveOptions,
    Series,
    chosen_charts,
    columns,
    curve,
    moving_average,
    usual_charts,
)
from areal_view.pages.runs import Runs, ShownRun
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

ODD = ("größe/α", "format short", "a/b/c", "50%", "<b>", "?&=#", "../x", "模型")


def run_of(root: Path, rows: list[dict[str, Any]], spec: dict[str, Any] | None = None) -> ShownRun:
    root.mkdir(parents=True, exist_ok=True)
    (root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "resolved.json").write_text(json.dumps({"job": {"spec": spec or {}}}))
    return ShownRun(root.name, root, root / "cache")


def line(values: list[float], name: str = "x") -> Series:
    return Series(name, np.arange(len(values)), np.array(values))


# ---- a chart's columns


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0.0, 0.99))
def test_a_moving_average_stays_within_what_it_averages(values: list[float], weight: float) -> None:
    found = moving_average(np.array(values), weight)
    low, high = np.minimum.accumulate(values), np.maximum.accumulate(values)
    slack = 1e-6 * (1 + np.abs(values).max())
    assert ((low - slack <= found) & (found <= high + slack)).all()


def test_the_moving_average_is_tensorboards() -> None:
    found = moving_average(np.array([1.0, math.nan, 3.0, 2.0]), 0.5)
    assert found[0] == 1.0
    assert math.isnan(found[1])
    assert found[2:] == pytest.approx([(0.25 * 1 + 0.5 * 3) / 0.75, (0.125 * 1 + 0.25 * 3 + 0.5 * 2) / 0.875])


@given(st.integers(1, 5000), st.integers(0, 10**6), st.integers(1, 7))
def test_thinning_keeps_every_extreme_and_is_small(count: int, first: int, gap: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    series = Series("x", first + gap * np.arange(count), values)
    told = columns([[series]], CurveOptions())
    (drawn,) = told["lines"]
    assert len(told["steps"]) == len(drawn["values"]) <= MOST_POINTS + 1
    assert told["steps"][-1] == first + gap * (count - 1)
    assert told["steps"] == sorted(set(told["steps"]))
    assert max(drawn.get("high", drawn["values"])) == pytest.approx(values.max(), rel=1e-5)
    assert min(drawn.get("low", drawn["values"])) == pytest.approx(values.min(), rel=1e-5)


def test_smoothing_is_of_all_steps_and_the_raw_line_stays_behind_it() -> None:
    values = np.random.default_rng(0).normal(size=20_000).tolist()
    told = columns([[line(values)]], CurveOptions(smooth=0.99, first=15_000, last=16_999))
    (drawn,) = told["lines"]
    assert (told["each"], told["steps"][0] // 4, told["steps"][-1]) == (4, 15_000 // 4, 16_999)
    assert drawn["values"][-1] == pytest.approx(moving_average(np.array(values), 0.99)[16_999], rel=1e-5)
    assert drawn["raw"][-1] == pytest.approx(np.mean(values[16_996:17_000]), rel=1e-5)
    assert len(json.dumps(told)) < 60_000


def test_a_log_axis_has_nothing_at_or_below_zero() -> None:
    told = columns([[line([1.0, 0.0, -1.0, math.nan, 4.0])]], CurveOptions(log=True))
    assert (told["lines"][0]["values"], told["hidden"], told["log"]) == ([1.0, None, None, None, 4.0], 2, True)


@pytest.mark.parametrize(
    ("band", "low", "high"), [("range", 1.0, 3.0), ("std", 1.0, 3.0), ("95", 2 - 2.484, 2 + 2.484)]
)
def test_runs_of_several_seeds_are_a_mean_with_a_band(band: Any, low: float, high: float) -> None:
    told = columns([[line([v]) for v in (1.0, 2.0, 3.0)]], CurveOptions(band=band))
    assert told["lines"][0]["values"] == [2.0]
    assert (told["lines"][0]["low"][0], told["lines"][0]["high"][0]) == pytest.approx((low, high), abs=2e-3)


def test_where_one_seed_is_left_there_is_no_interval() -> None:
    told = columns([[line([1.0, 2.0, 3.0]), line([3.0])]], CurveOptions())
    assert (told["lines"][0]["values"], told["lines"][0]["low"][1:]) == ([2.0, 2.0, 3.0], [None, None])


# ---- figures of a stranger's file


@pytest.fixture
def strange(tmp_path: Path) -> ShownRun:
    """300 figures of odd names; one begins at step 5,000; values that are no numbers; damaged rows."""
    rows: list[dict[str, Any]] = [
        {"step": step, "reward_mean": 0.5, "huge": 10**400, "odd": [1], "flag": True, "figures": {"nan": math.nan}}
        for step in range(5_000)
    ]
    rows[7]["figures"]["inf"] = math.inf
    own = dict.fromkeys((*ODD, *(f"part-{n:03}" for n in range(300))), 1.0)
    rows += [{"step": step, "reward_mean": "none", "figures": own} for step in range(5_000, 5_010)]
    rows += [{"step": "x"}, {"step": -1}, {"step": 2**70}, {"step": 5_010, "figures": "none", "seconds": None}]
    return run_of(tmp_path / "strange", rows)


@pytest.mark.parametrize("name", ODD)
def test_a_figure_of_any_name_has_a_chart(strange: ShownRun, name: str) -> None:
    with TestClient(app_of(Runs([strange.layout.root], strange.layout.root / "cache"))) as client:
        told = client.get(f"/r/strange/curves?name={quote(f'figures/{name}', safe='')}").json()
        page = client.get(f"/r/strange?chart={quote(f'figures/{name}', safe='')}")
    (drawn,) = told["lines"]
    assert drawn["label"] == name
    assert [value for value in drawn["values"] if value is not None][-1] == 1.0
    assert page.text.count("<figure") == 1
    assert "<b></figcaption>" not in page.text


def test_every_figure_can_be_found_and_what_is_no_number_is_a_gap(strange: ShownRun) -> None:
    assert len(strange.rows()) == 5_011
    assert len(usual_charts(strange)) == 1 + MOST_CHARTS
    choice = chosen_charts([strange], usual_charts(strange), text="PART 29")
    assert [name for name, _ in choice.charts[:2]] == ["figures/part-029", "figures/part-129"]
    assert choice.left == 0
    assert chosen_charts([strange], [], text="part").left == 300 - MOST_CHARTS
    assert len(chosen_charts([strange], [], ["figures/part-007"], "50%").figures) == 2
    for name in ("figures/nan", "figures/inf"):
        told = curve(strange, name)
        assert told is not None
        assert set(told["lines"][0]["values"]) == {None}
    told = curve(strange, "trainer/huge")
    assert told is None or set(told["lines"][0]["values"]) == {None}
    assert curve(strange, "figures/none") is None


def test_an_address_says_how_curves_are_drawn(strange: ShownRun) -> None:
    with TestClient(app_of(Runs([strange.layout.root], strange.layout.root / "cache"))) as client:
        text = client.get("/r/strange?figure=reward&smooth=0.9&log=1&from=10&to=99").text
        assert "name=reward&amp;from=10&amp;to=99&amp;smooth=0.9&amp;log=1" in text
        assert client.get("/r/strange/curves?name=reward&from=10&to=99").json()["steps"] == list(range(10, 100))
        for wrong in ("smooth=1", "smooth=nan", "smooth=-1", "from=x"):
            assert client.get(f"/r/strange?{wrong}").status_code == 400
        assert "No figure has" in client.get("/r/strange?figure=nothing-like-it").text


# ---- runs side by side


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Runs]:
    """A study of two variants with three seeds each, beside a run of its own."""
    for eta in (1, 2):
        for seed in range(3):
            rows = [
                {"step": step, "reward_mean": eta + seed / 10, "seconds": {"wait": 1.0}} for step in range(4 + seed)
            ]
            spec = {"seed": seed, "algorithm": {"maxStaleness": eta, "maxSteps": 6}}
            run = run_of(tmp_path / "runs" / "digits-study" / f"eta-{eta}_seed-{seed}", rows, spec)
            held_out = {"name": "2.f1", "version": 2, "mean": eta / 4 + seed / 10, "rows": 50}
            run.layout.evaluations.write_text(json.dumps(held_out) + "\n")
    run_of(tmp_path / "runs" / "alone", [{"step": 0, "reward_mean": 0.0}], {"seed": 0})
    runs = Runs([tmp_path / "runs"], tmp_path / "cache")
    yield runs
    runs.close()


def test_a_study_is_compared_by_variant_with_bands_over_its_seeds(study: Runs) -> None:
    with TestClient(app_of(study)) as client:
        listed = client.get("/").text
        assert 'href="/compare?study=digits-study"' in listed
        assert 'value="digits-study:eta-1_seed-0"' in listed
        told = client.get("/compare?study=digits-study&format=json").json()
        assert [group["label"] for group in told["groups"]] == ["eta-1 (3 seeds)", "eta-2 (3 seeds)"]
        assert told["fields"] == [["algorithm.maxStaleness", ["1", "2"]], ["seed", ["0, 1, 2", "0, 1, 2"]]]
        assert ["held-out, last", ["0.350 ± 0.248", "0.600 ± 0.248"]] in told["figures"]
        shown = client.get("/compare/curves?study=digits-study&name=reward&band=range").json()
        first = shown["lines"][0]
        assert (first["values"][0], first["low"][0], first["high"][0]) == pytest.approx((1.1, 1.0, 1.2))
        assert first["low"][-1] == first["high"][-1] == 1.2, "one seed is left"
        apart = client.get("/compare/curves?study=digits-study&name=evaluation/mean&seeds=apart").json()
        assert (len(apart["lines"]), apart["axis"]) == (6, "version")
        text = client.get("/compare?study=digits-study&run=alone&seeds=apart").text
        assert "study=digits-study&amp;run=alone&amp;seeds=apart&amp;name=" in text
        assert client.get("/compare?study=none").status_code == 404


def test_the_picture_that_a_study_drew_is_on_its_page_only(study: Runs, tmp_path: Path) -> None:
    with TestClient(app_of(study)) as client:
        assert "data:image" not in client.get("/compare?study=digits-study").text
        (tmp_path / "runs/digits-study/study.svg").write_text("<svg/>")
        assert 'src="data:image/svg+xml;base64,PHN2Zy8+"' in client.get("/compare?study=digits-study").text
        assert "data:image" not in client.get("/compare?study=digits-study&run=alone").text


def test_the_list_of_runs_is_narrowed_by_name_and_state(study: Runs) -> None:
    with TestClient(app_of(study)) as client:
        assert len(client.get("/?name=ETA-1&format=json").json()) == 3
        assert client.get("/?state=Complete&format=json").json() == []
        assert len(client.get("/?state=cut off&format=json").json()) == 7
        assert "No run fits." in client.get("/?name=none").text


def test_runs_of_old_jobs_and_without_a_job_are_compared_one_by_one(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / name, [{"step": 0}]) for name in ("a", "b")]
    assert [label for label, _ in app.groups_of(runs, apart=False)] == ["a", "b"]


# ---- trainings on fixed rows


@pytest.mark.parametrize("spec", [{"training": {"name": "DPO", "maxSteps": 9}}, {"training": "DPO", "dpo": {}}])
def test_a_supervised_run_speaks_of_its_loss_rows_and_tokens(tmp_path: Path, spec: dict[str, Any]) -> None:
    rows = [
        {"step": step, "training": "DPO", "loss": 0.7 - step / 10, "epoch": 0, "rows": 8, "trained_tokens": 100,
         "tokens": 120, "grad_norm": 1.0, "learning_rate": 1e-6, "pair_accuracy": 0.75, "margin": 0.1,
         "tokens_per_s": 50.0, "wall_s": 1.5, "seconds": {"train": 1.0, "reference": 0.5}}
        for step in range(3)
    ]  # fmt: skip
    run = run_of(tmp_path / "dpo", rows, spec)
    held_out = {"version": 3, "metric": "pair_accuracy", "mean": 0.8, "pair_accuracy": 0.8, "loss": 0.4, "rows": 10}
    run.layout.evaluations.write_text(json.dumps(held_out) + "\n")
    told = overview.page_of(run)
    facts = dict(told.facts)
    assert {
        "training": "DPO",
        "loss, last 5 steps": "0.600",
        "rows trained": "24",
        "tokens trained": "300",
    }.items() <= facts.items()
    assert ("held-out pair accuracy", "0.800 → 0.800") in told.facts
    assert [name for name, _ in told.choice.charts] == ["loss", "speed", "gradient", "pairs", "margin", "seconds"]
    with TestClient(app_of(Runs([tmp_path], tmp_path / "cache"))) as client:
        page, evaluations = client.get("/r/dpo").text, client.get("/r/dpo/evals").text
        loss = client.get("/r/dpo/curves?name=loss").json()
    for text in (page, evaluations):
        assert "–</td>" not in text
        assert "–</dd>" not in text
        assert "staleness" not in text
    assert [one["label"] for one in loss["lines"]] == ["loss", "held-out"]
    assert "0.490 to 0.943" in evaluations  # Wilson, 8 of 10
    assert '<th class="n">loss</th>' in evaluations
