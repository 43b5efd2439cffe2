"""Alerts: each is tested, explained, and asks only for metrics that exist."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from areal.spec.status import ConditionType, ScheduledReason
from chart.chart_metrics import OF_KUBELETS, declared, emitted, grouped, labels_of, selectors
from chart.chart_rendering import CHART, ROOT
from kube.harness import tools

RULES = CHART / "files" / "alerts.yaml"
TESTS = sorted(Path(__file__).parent.glob("alerts_firing*.yaml"))
ALL: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in ALL if "alert" in rule}
RECORDS = {rule["record"]: rule for rule in ALL if "record" in rule}


def promtool(*arguments: str, cwd: Path) -> str:
    """What promtool says; it comes with `make k8s-tools`, or from PATH."""
    path = tools.tools_dir() / "promtool"
    program = str(path) if path.is_file() else shutil.which("promtool")
    if program is None:
        raise tools.MissingTool(f"promtool is neither in {tools.tools_dir()} nor in PATH: run `make k8s-tools`")
    return tools.run(["env", "-C", str(cwd), program, *arguments]).stdout


@pytest.mark.kube_api
def test_prometheus_takes_the_rules_and_each_fires_for_the_ill_and_is_silent_for_the_well(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    for path in TESTS:
        shutil.copy(path, tmp_path)
    assert f"SUCCESS: {len(ALL)} rules found" in promtool("check", "rules", RULES.name, cwd=tmp_path)
    assert "SUCCESS" in promtool("test", "rules", *(path.name for path in TESTS), cwd=tmp_path)


def test_every_alert_has_a_firing_and_a_silent_series() -> None:
    tests = [test for path in TESTS for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fired == ALERTS.keys()
    for test in tests:
        series = {each["series"] for each in test["input_series"]}
        silent_times = [case for case in test["alert_rule_test"] if not case["exp_alerts"]]
        assert silent_times or any('"well' in each for each in series), test["name"]


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_bad_it_is_and_links_to_its_page(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert re.fullmatch(r"\d+[mh]", rule["for"])
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{name.lower()}"


def test_the_page_of_alerts_has_a_section_for_each_and_for_nothing_else() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (\w+)$", page, re.M)
    assert headings == list(ALERTS)
    for name in ALERTS:
        section = page.split(f"### {name}\n")[1].split("\n#")[0]
        for word in ("**Means.**", "**Look.**", "**Do.**"):
            assert word in section, name


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: str(rule.get("alert") or rule["record"]))
def test_a_rule_asks_for_metrics_and_labels_that_exist_and_are_served(rule: dict[str, Any]) -> None:
    found = list(selectors(rule["expr"]))
    assert found
    known = {"namespace", "rljob"}
    for name, matched in found:
        if name in RECORDS:
            continue
        if name in OF_KUBELETS:
            known |= {"persistentvolumeclaim"}
            continue
        metric = declared(name)
        assert metric is not None, f"{name} is not in the catalogue"
        assert metric.name in emitted(), f"nobody serves {name}"
        assert matched <= labels_of(metric), name
        known |= labels_of(metric)
    assert grouped(rule["expr"]) <= known


def test_reasons_and_types_in_rules_are_those_that_conditions_have() -> None:
    text = RULES.read_text(encoding="utf-8")
    asked = re.findall(r'type="Scheduled",reason!?~"([^"]+)"', text)
    assert asked
    assert {reason for words in asked for reason in words.split("|")} <= {reason.value for reason in ScheduledReason}
    types = {word for words in re.findall(r'type=~?"([^"]+)"', text) for word in words.split("|")}
    assert types <= {kind.value for kind in ConditionType}
