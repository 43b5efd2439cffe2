"""README's commands, word for word and in order, and the bar that the quickstart promises."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.job_run import ROOT
from support.newcomer import Newcomer, commands_of, fresh_account, no_accounts

pytestmark = [pytest.mark.system, pytest.mark.timeout(7200)]

TUTORIALS = ROOT / "docs" / "tutorials"
README = commands_of(ROOT / "README.md", until="How it works")


def test_readme_s_commands_pass_without_an_environment_and_the_quickstart_s_reward_rises(tmp_path):
    """In this checkout, whose environment is there; the next test begins with nothing."""
    assert README[:2] == ["make quickstart", "source .venv/bin/activate"]
    types_readme(Newcomer(tmp_path, ROOT))


def types_readme(newcomer: Newcomer) -> None:
    print(*newcomer.types(README[:1], timeout_s=3600), sep="\n")
    check_quickstart(newcomer.clone / "runs" / "digits")
    print(*newcomer.types(README[1:], timeout_s=3600), sep="\n")


def check_quickstart(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "Complete"
    assert summary["steps"] == 160
    assert summary["groups"] == {"trained": 160 * 64, "tombstoned": {}, "lost": 0, "duplicated": 0}
    assert summary["staleness"]["max"] <= 2
    held_out = summary["heldOut"]
    assert held_out["first"] <= 0.75
    assert held_out["last"] >= 0.9
    assert held_out["best"] - held_out["last"] <= 0.03
    print(json.dumps(summary))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    with_figure = [row["step"] for row in rows if row["behaviour_gap"] is not None]
    assert len(with_figure) >= 0.95 * len(rows), "how far trainer and engine are apart is known nearly always"
    asked = [sys.executable, "-m", "areal.cli.main", "why", str(run), "--slow", "--json"]
    told = json.loads(subprocess.run(asked, capture_output=True, text=True, timeout=120, check=True).stdout)
    for causes in told["ledger"]["roles"].values():
        assert sum(causes.values()) == pytest.approx(told["seconds"], rel=1e-6)
    assert told["ledger"]["roles"].keys() == {"trainer", "generation-0"}
    modelled, measured = told["forecast"]["modelled_s"], told["forecast"]["measured_s"]
    assert modelled == pytest.approx(measured, rel=0.35), "the model knows this run's pace"
    print(f"a step: {modelled:.2f} s modelled, {measured:.2f} s measured")


@pytest.fixture
def newcomer() -> Iterator[Newcomer]:
    if why := no_accounts():
        pytest.skip(f"no fresh account: {why}")
    with fresh_account() as made:
        yield made


ACTIVATE = "source .venv/bin/activate"


@pytest.mark.nightly
def test_a_fresh_account_types_readme_and_the_first_tutorials(newcomer):
    types_readme(newcomer)
    for page in (TUTORIALS / "first-run.md", TUTORIALS / "own-model.md"):
        commands = [command for command in commands_of(page) if command != "make quickstart"]
        print(page.name, *newcomer.types([ACTIVATE, *commands], timeout_s=3600), sep="\n")
    assert gigabytes(newcomer.clone / ".venv") <= 3


@pytest.mark.nightly
def test_a_fresh_account_s_own_reward_on_its_own_csv_rises(newcomer):
    """The tutorial from nothing: what a page shows under the name of a file is written there at its place."""
    began = time.monotonic()
    newcomer.types(["make runtime"])
    typed = newcomer.types([ACTIVATE, *commands_of(TUTORIALS / "own-task.md")], timeout_s=5000)
    print(*typed, f"{(time.monotonic() - began) / 60:.1f} minutes in all", sep="\n")
    mine = newcomer.clone / "words" / "runs" / "mine"
    summary = json.loads((mine / "summary.json").read_text())
    print(json.dumps(summary["heldOut"]))
    assert (summary["status"], summary["groups"]["lost"], summary["groups"]["duplicated"]) == ("Complete", 0, 0)
    assert summary["heldOut"]["last"] >= summary["heldOut"]["first"] + 0.05
    assert gigabytes(newcomer.clone / ".venv") <= 3


def gigabytes(place: Path) -> float:
    """What a directory holds, hard links counted as files."""
    held = sum(path.stat().st_size for path in place.rglob("*") if path.is_file() and not path.is_symlink()) / 1e9
    print(f"{place.name}: {held:.2f} GB")
    return held
