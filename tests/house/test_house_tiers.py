"""`make test` runs every tier, whatever fails, and says at the end how each went."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from datetime import datetime
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    loader = SourceFileLoader("tiers_tool", str(ROOT / "tools" / "tiers"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def test_tiers_after_a_failed_one_run_and_the_table_says_which_failed(tool, capsys):
    def tier(name: str, script: str, minutes: float = 1):
        return tool.Tier(name, minutes, ("sh", "-c", script))

    stages = [
        [tier("first", "echo 1 failed; exit 3")],
        [tier("second", "echo 2 passed"), tier("late", "echo 4 passed", 0)],
    ]
    behind = tool.Tier("third", 1, ("sh", "-c", "echo 3 passed; exit 4"), background=True)
    assert tool.run_all(tool.Plan(stages, [behind])) == 1
    said = capsys.readouterr().out
    rows = {line.split()[0]: line for line in said.partition("closing line")[2].splitlines() if line}
    assert "FAILED (exit status 3)" in rows["first"]
    assert rows["first"].endswith("1 failed")
    assert "passed" in rows["second"]
    assert "FAILED (exit status 4)" in rows["third"]
    assert "passed, over its budget" in rows["late"]
    assert said.rstrip().endswith("FAILED: first, third")
    assert tool.run_all(tool.Plan([[tier("only", "true")]])) == 0


def test_a_tier_that_needs_a_background_tier_begins_after_it(tool, tmp_path):
    made = tmp_path / "made"
    slow = tool.Tier("slow", 1, ("sh", "-c", f"sleep 0.3; touch {made}"), background=True)
    before = tool.Tier("before", 1, ("sh", "-c", f"test ! -e {made}"))
    after = tool.Tier("after", 1, ("test", "-e", str(made)), needs="slow")
    assert tool.run_all(tool.Plan([[before], [after]], [slow])) == 0


def test_the_slowest_tests_come_from_pytests_own_report(tool, tmp_path):
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite><testcase classname="a.b" name="c" time="1.5"/></testsuite></testsuites>')
    assert tool.times(report) == {"a.b::c": 1.5}
    outcome = tool.Outcome(tool.Tier("unit", 1, ()), 62.0, "", "1 passed", tool.times(report))
    assert "0:01  a.b::c" in tool.table([outcome], 62.0)


def commands(plan) -> list[tuple[str, ...]]:
    return [tuple(tier.command) for stage in (*plan.stages, plan.behind) for tier in stage]


MARKS = ("component", "sglang_real", "system", "kube_api", "kube_node")


def test_every_test_file_belongs_to_a_tier(tool):
    landing, night = commands(tool.landing()), commands(tool.nightly())
    for mark in MARKS:
        for file in tool.marked(mark):
            assert any(file in command for command in landing), file
    scale = next(it for it in night if "tests/kube/test_kube_scale.py" in it)
    assert "kube_api and not system and nightly" in scale
    (unit,) = (tier.command for tier in tool.check(quick=True) if tier.name == "unit")
    for path in tool.test_files():
        file = str(path.relative_to(ROOT))
        searched = any(file.startswith(schedules) for schedules in tool.SCHEDULES)
        marked = any(f"mark.{mark}" in path.read_text() for mark in MARKS)
        assert searched or marked or file in unit, file
    assert all(any(path in command for command in landing) for path in tool.SCHEDULES)


def test_the_longest_files_begin_first(tool):
    ordered = [command for command in commands(tool.landing()) if "--no-loadscope-reorder" in command]
    begun = [[word for word in command if word.startswith("tests/")] for command in ordered]
    assert all(any(file in files for files in begun) for file in tool.LONG), "each is there still"
    for files in begun:
        long = [file for file in tool.LONG if file in files]
        assert files[: len(long)] == long != []


def test_what_a_landing_leaves_out_runs_at_night(tool):
    """Each file with a nightly test is given to the tier of its other mark, and no tier of a landing takes the test."""
    night = commands(tool.nightly())
    for file in tool.marked("nightly"):
        if file == f"tests/house/{Path(__file__).name}":
            continue
        assert any(file in command and any(word.endswith(" and nightly") for word in command) for command in night), (
            file
        )
    for tier in (tier for stage in tool.landing().stages for tier in stage):
        if "pytest" in tier.command:
            assert tier.command[tier.command.index("-m", 3) + 1].endswith(" and not nightly"), tier.name
    simulated = next(it for it in night if "AREAL_SIM_SCHEDULES=1000" in it)
    assert "AREAL_OPERATOR_SCHEDULES=400" in simulated


def test_a_landings_stages_fit_into_its_budget(tool):
    plan = tool.landing()
    assert sum(max(tier.minutes for tier in stage) for stage in plan.stages) <= plan.minutes == 31


def test_a_package_runs_its_own_tests_alone_and_an_unknown_one_is_answered_with_those_there_are(tool):
    plan, _ = tool.chosen(["--package", "judge"])
    ((tier,),) = plan.stages
    assert [word for word in tier.command if word.startswith("tests/")] == ["tests/judge"]
    assert tier.minutes <= 8
    ((tier,),) = tool.chosen(["--package", "gateway"])[0].stages
    assert {"tests/gateway", "tests/conformance"} <= {*tier.command}
    with pytest.raises(SystemExit, match="ledger"):
        tool.chosen(["--package", "nobody"])


def test_what_a_run_came_to_is_kept_with_its_date(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    good, bad = tool.Tier("good", 1, ("true",)), tool.Tier("bad", 1, ("false",))
    assert tool.run_all(tool.Plan([[good], [bad]], minutes=1), "nightly") == 1
    kept = json.loads((tmp_path / "runs" / "tests" / "nightly.json").read_text())
    assert (kept["passed"], [one["failure"] for one in kept["tiers"]]) == (False, ["", "exit status 1"])
    assert datetime.fromisoformat(kept["date"]).tzinfo is not None


def test_an_interrupted_run_ends_its_tiers_and_begins_no_other(tmp_path):
    """Ctrl-C reaches every tier once: the tiers have sessions of their own, the tool passes it on."""
    script = f"""
import importlib.util, signal, sys
from importlib.machinery import SourceFileLoader
loader = SourceFileLoader("tiers_tool", {str(ROOT / "tools" / "tiers")!r})
spec = importlib.util.spec_from_loader(loader.name, loader)
tool = importlib.util.module_from_spec(spec)
sys.modules[loader.name] = tool
loader.exec_module(tool)
waits = "trap 'echo >> {tmp_path}/ended; exit 1' INT; echo >> {tmp_path}/began; while :; do sleep 0.05; done"
tier = lambda name, script: tool.Tier(name, 1, ("sh", "-c", script), background=name == "behind")
stages = [[tier("c", "touch {tmp_path}/c")]]
tool.landing = lambda: tool.Plan([[tier("a", waits), tier("b", waits)], *stages], [tier("behind", waits)])
sys.argv[1:] = []
sys.exit(tool.main())
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    began, ended = tmp_path / "began", tmp_path / "ended"
    while not began.exists() or len(began.read_text()) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(ended.read_text()) == 3
    assert not (tmp_path / "c").exists()
