"""Tables of docs/learning.md: what the command makes of runs, and that the page shows the committed figures."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERIES = ROOT / "docs" / "staleness.json"


@pytest.fixture(scope="module")
def learn():
    loader = SourceFileLoader("learn", str(ROOT / "tools" / "learn"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("learn", loader))
    loader.exec_module(module)
    return module


def test_a_series_is_told_by_eta_over_its_seeds(learn, tmp_path):
    rows = []
    for name, last in (("eta-0_seed-0", 0.9), ("eta-0_seed-1", 0.8), ("eta-8_seed-0", 0.7)):
        (tmp_path / name).mkdir()
        ages = [0.0, 2.0] if name.startswith("eta-8") else [0.0]
        steps = [json.dumps({"step": step, "staleness": age}) for step, age in enumerate(ages)]
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(steps) + "\n")
        held_out = [{"version": 0, "mean": 0.65}, {"version": 80, "mean": last}]
        rows.append({"name": name, "steps": 80, "wallSeconds": 60.0, "heldOut": held_out})
    table = learn.staleness_table(learn.staleness_figures(tmp_path, rows))
    assert "| 0 | 2 | 0.650 | 0.850 | 0.100 | 0.00 | 60 |" in table
    assert "| 8 | 1 | 0.650 | 0.700 | 0.000 | 1.00 | 60 |" in table


def test_the_series_has_three_etas_and_three_seeds_of_one_version(learn):
    series = [learn._stale(eta, seed) for eta in learn.ETAS for seed in learn.SEEDS]
    assert len({one.name for one in series}) == 9
    assert all("evaluation.oneVersion=true" in one.overrides for one in series)


@pytest.mark.skipif(not SERIES.exists(), reason="the series has not been run for this page")
def test_the_page_shows_the_figures_of_the_last_series(learn):
    assert learn.staleness_table(json.loads(SERIES.read_text())) in (ROOT / "docs/learning.md").read_text()
