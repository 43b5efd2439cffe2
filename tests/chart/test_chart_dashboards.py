"""Dashboards: readable, parseable, about metrics that exist, and committed as their code makes them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from areal.observe.catalog import CATALOG, Scope
from areal_trainer.reporting import PHASES
from chart.chart_metrics import (
    BOARDS,
    OF_CARDS,
    OF_PROCESSES,
    PANELS,
    declared,
    emitted,
    grouped,
    labels_of,
    panels,
    promql,
    selectors,
)  # fmt: skip

UIDS = {"fleet": "areal-fleet", "rljob": "areal-rljob", "generation": "areal-generation", "operator": "areal-operator"}


def test_the_four_boards_keep_their_addresses() -> None:
    assert {name: board["uid"] for name, board in BOARDS.items()} == UIDS


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_asks_the_data_source_that_is_chosen_on_it(name: str) -> None:
    board = BOARDS[name]
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    sources = re.findall(r'"datasource": (\{[^}]*\})', json.dumps([board["panels"], board["templating"]]))
    assert {json.loads(source)["uid"] for source in sources} == {"$datasource"}
    used = set(re.findall(r"\$(\w+)", json.dumps(board["panels"]))) - {"__rate_interval"}
    assert used <= variables.keys()
    assert board["tags"] == ["areal"]
    assert board["description"]


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=[f"{name}: {panel['title']}" for name, panel in PANELS])
def test_a_panel_says_what_it_shows_in_which_unit_and_asks_for_what_is_served(name: str, panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    for target in panel["targets"]:
        expression = promql(target["expr"])
        assert "$" not in expression
        assert target["legendFormat"]
        known: set[str] = set()
        for metric_name, matched in selectors(expression):
            if metric_name in OF_PROCESSES:
                known |= {"pod", "namespace", "rljob", "role"}
                continue
            if metric_name in OF_CARDS:
                known |= {"exported_pod", "pod", "gpu"}
                assert matched in ({"exported_namespace", "exported_pod"}, {"namespace", "pod"})
                continue
            metric = declared(metric_name)
            assert metric is not None, f"{metric_name} is not in the catalogue"
            assert metric.name in emitted(), f"nobody serves {metric_name}"
            assert matched <= labels_of(metric), metric_name
            known |= labels_of(metric)
            chosen_by_job = {"namespace", "rljob"} <= matched
            assert chosen_by_job is (name != "operator" and metric.scope is not Scope.OPERATOR), metric_name
        assert grouped(expression) <= known
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known


def test_titles_are_unique_on_a_board() -> None:
    for board in BOARDS.values():
        titles = [panel["title"] for panel in panels(board)]
        assert len(titles) == len(set(titles))


def test_panels_do_not_cover_each_other() -> None:
    for board in BOARDS.values():
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, panel["title"]
            taken |= cells


def test_what_the_code_serves_is_shown_somewhere_or_left_out_on_purpose() -> None:
    shown = {
        metric.name
        for _, panel in PANELS
        for target in panel["targets"]
        for name, _ in selectors(promql(target["expr"]))
        if (metric := declared(name))
    }
    left_out = {
        "areal_reward_inflight", "areal_reward_capacity", "areal_operator_events_dropped_total",
        "areal_rljob_condition", "areal_rljob_condition_reason", "areal_rljob_volume_info",
        "areal_rljob_checkpoint_interval_steps", "areal_rljob_oldest_served_version", "areal_rljob_groups_trained",
        "areal_rljob_checkpoint_step", "areal_rljob_created_timestamp_seconds", "areal_rljob_start_timestamp_seconds",
        "areal_rljob_completion_timestamp_seconds", "areal_rljob_last_report_timestamp_seconds",
        "areal_rljob_loss_timestamp_seconds", "areal_rljob_stall_timeout_seconds",  # alerts'
    }  # fmt: skip
    assert emitted() - shown == left_out & emitted()
    assert shown <= CATALOG.keys()


def test_a_panel_of_phases_names_those_that_the_trainer_tells() -> None:
    [panel] = [panel for _, panel in PANELS if panel["title"] == "Time of a step by phase"]
    described = re.sub(r" \([^)]*\)", "", panel["description"]).rpartition("phase: ")[2].rstrip(".").split(", ")
    assert tuple(described) == PHASES


def test_marks_of_epochs_versions_and_losses_say_what_they_are_in_labels_that_their_series_have() -> None:
    for name, board in BOARDS.items():
        events = {event["name"]: event for event in board["annotations"].get("list", [])}
        assert events.keys() == (set() if name == "operator" else {"Restarts", "Versions", "Losses"})
        for event in events.values():
            [(read, matched)] = selectors(promql(event["expr"]))
            metric = declared(read)
            assert metric is not None
            assert metric.name in emitted()
            assert {"namespace", "rljob"} <= matched
            assert set(re.findall(r"\{\{(\w+)\}\}", event["titleFormat"])) <= labels_of(metric)
