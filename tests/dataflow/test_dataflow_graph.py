"""Stages and columns: what doesn't fit is told before a run and while it runs; pictures are what the code makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from areal.cli.check import graph_command
from areal.dataflow.builtin import ADVANTAGES, REWARDS, StepNeeds, policy_gradient
from areal.dataflow.draw import svg, text
from areal.dataflow.running import StepRun
from areal.dataflow.stages import Column, Graph, Stage, problems
from areal.errors import BugError, ConfigError, DataError
from areal.yaml_file.document import read_document

from tools.pages.dataflow import files, graphs

ROOT = Path(__file__).resolve().parents[2]
PPO = policy_gradient(StepNeeds(critic=True, proximal=True, kl="loss"))


def changed(name: str, **fields: object) -> Graph:
    return Graph(tuple(replace(one, **fields) if one.name == name else one for one in PPO.stages))


@pytest.mark.parametrize("graph", [graph for _, graph, _ in graphs()], ids=[name for name, *_ in graphs()])
def test_every_built_in_graph_fits_together(graph):
    assert problems(graph) == []


@pytest.mark.parametrize(
    ("graph", "told"),
    [
        (Graph(tuple(one for one in PPO.stages if one.name != "values")), "advantages reads values, which no stage"),
        (Graph((*PPO.stages, PPO.stage("score"))), "the column rewards is there twice"),
        (changed("score", writes=(replace(REWARDS, dtype="float32"),)), "reads rewards as float64 by sequence, score"),
        (changed("score", writes=(replace(REWARDS, axis="token"),)), "score writes it as float64 by token"),
        (changed("score", writes=(REWARDS, Column("verdict", "sequence", "str"))), "nothing reads verdict"),
        (changed("score", writes=(Column("reward", "sequence", "float64"),)), "(there is reward)"),
        (
            Graph((*PPO.stages, Stage("late", "infer", model="policy"))),
            "late needs policy as it was at the start of the step, after its update",
        ),
        (
            Graph((*PPO.stages, Stage("early", "score", (ADVANTAGES,), clock="sample"))),
            "early runs for each sample and reads advantages",
        ),
        (changed("values", placement="offloaded"), "values can't be offloaded: only a model that is asked"),
        (changed("update critic", placement="offloaded"), "update critic can't be offloaded"),
        (changed("update policy", writes=()), "generate reads policy of an earlier step, and no step writes it"),
    ],
)
def test_what_does_not_fit_is_told(graph, told):
    assert any(told in problem for problem in problems(graph)), problems(graph)


def test_a_placement_is_drawn_and_is_the_jobs():
    graph = policy_gradient(StepNeeds(kl="loss", teacher=True, proximal=True, reference_placement="offloaded"))
    assert "reference (infer · reference, offloaded)" in text(graph)
    assert "teacher log-probs (infer · teacher)" in text(graph)
    assert "reference · reference, offloaded" in svg(graph, "a")


OFFSETS = np.array([0, 2, 5])
SAMPLED = {
    "token_ids": np.arange(5), "loss_mask": np.ones(5, bool), "truncated": np.zeros(2, bool),
    "rewards": np.array([1.0, 0.0]), "group_ids": np.zeros(2, int), "sample_indices": np.arange(2),
    "behaviour_logprobs": np.zeros(5, np.float32), "versions": np.zeros(5, int),
}  # fmt: skip
MADE = {
    "values": {"values": np.zeros(5), "bootstrap": np.zeros(2)},
    "advantages": {"advantages": np.zeros(5), "trained": np.ones(2, bool), "returns": np.zeros(5)},
    "proximal": {"proximal": np.zeros(5, np.float32)},
    "reference": {"reference": np.zeros(5, np.float32)},
    "update critic": {},
    "update policy": {},
}


def run_of(ran: list[str], **changed: object) -> StepRun:
    """A step of the graph of PPO, whose stages write zeros and say that they ran, and with what."""

    def function(name: str):
        def run(inputs):
            ran.append(name)
            assert set(inputs) == {column.name for column in PPO.stage(name).reads}
            return changed.get(name, MADE[name])

        return run

    return StepRun(PPO, {name: function(name) for name in MADE}, SAMPLED, OFFSETS)


def test_a_step_runs_each_stage_once_in_the_order_of_its_graph_and_an_update_again_when_asked():
    ran: list[str] = []
    step = run_of(ran)
    step.through("advantages")
    assert ran == ["values", "advantages"]
    step.rest()
    step.rest()
    assert ran == [stage.name for stage in PPO.stages if stage.clock == "step" and stage.kind != "publish"]
    step.again("update")
    step.rest()
    assert ran[-4:] == ["update critic", "update policy"] * 2


def test_what_a_caller_hands_on_is_not_made():
    ran: list[str] = []
    step = run_of(ran)
    step.provide("advantages", {**MADE["values"], **MADE["advantages"]})
    step.columns |= MADE["proximal"]
    step.skip("proximal")
    step.rest()
    assert ran == ["reference", "update critic", "update policy"]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"values": np.zeros(5)}, "its graph says"),
        ({"values": np.zeros(4), "bootstrap": np.zeros(2)}, r"float64\[4\], its graph says float64\[5\]"),
        ({"values": np.zeros(5, np.float32), "bootstrap": np.zeros(2)}, "float32"),
    ],
)
def test_a_stage_that_writes_something_else_than_declared_ends_the_step(written, told):
    with pytest.raises(BugError, match=told):
        run_of([], values=written).rest()


def odd(value: float, place: int, length: int, dtype: str = "float64") -> np.ndarray:
    found = np.zeros(length, dtype)
    found[place] = value
    return found


@pytest.mark.parametrize(
    ("stage", "written", "told"),
    [
        (
            "values",
            {"values": odd(np.nan, 3, 5)},
            r"values gives values = nan for sample 1 of group 0, token 1 \(1 such",
        ),
        ("values", {"bootstrap": odd(np.inf, 0, 2)}, r"values gives bootstrap = inf for sample 0 of group 0 \("),
        ("advantages", {"advantages": odd(-np.inf, 0, 5)}, "advantages gives advantages = -inf for sample 0 .*token 0"),
        (
            "proximal",
            {"proximal": odd(np.nan, 4, 5, "float32")},
            "proximal gives proximal = nan for sample 1 .*token 2",
        ),
    ],
)
def test_a_number_that_is_none_ends_the_step_and_its_place_is_named(stage, written, told):
    with pytest.raises(DataError, match=told):
        run_of([], **{stage: {**MADE[stage], **written}}).rest()


def test_tokens_that_no_gradient_reaches_may_hold_anything():
    step = run_of([], values={**MADE["values"], "values": odd(np.nan, 3, 5)})
    step.columns["loss_mask"] = odd(0, 0, 5).astype(bool) | (np.arange(5) != 3)
    step.rest()


def test_what_answers_from_elsewhere_is_begun_before_its_turn_and_awaited_at_it():
    ran: list[str] = []

    class Elsewhere:
        def begin(self, inputs):
            ran.append(f"ask with {', '.join(inputs)}")
            return lambda: (ran.append("answer"), {"reference": np.zeros(5, np.float32)})[1]

    step = run_of(ran)
    step._functions["reference"] = Elsewhere()
    step.through("advantages")
    step.rest()
    assert ran == [
        "values", "advantages", "ask with token_ids, loss_mask, trained", "proximal", "answer",
        "update critic", "update policy",
    ]  # fmt: skip


def test_the_page_and_its_pictures_are_made_from_the_code():
    made = files()
    assert len(made) == 11
    for path, content in made.items():
        assert (ROOT / "docs" / path).read_text(encoding="utf-8") == content, f"{path}: run `make docs`"
        if path.endswith(".svg"):
            ElementTree.fromstring(content)


def test_a_jobs_graph_is_printed_drawn_and_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    job = ROOT / "examples" / "ppo.yaml"
    assert graph_command(read_document(job), (), "-") == 0
    assert "update critic (update · critic)" in capsys.readouterr().out
    assert graph_command(read_document(job), (), str(tmp_path / "step.svg")) == 0
    assert "update critic" in (tmp_path / "step.svg").read_text()
    with pytest.raises(ConfigError, match="no SVG file"):
        graph_command(read_document(job), (), str(tmp_path / "step.png"))
    with pytest.raises(ConfigError, match="a group of 1"):
        graph_command(read_document(job), ("algorithm.name=GRPO",), "-")
