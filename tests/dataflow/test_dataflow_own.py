"""A recipe's own graph: what fits is run and drawn, what doesn't is told before a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from areal.cli.check import graph_command
from areal.dataflow import draw
from areal.dataflow.builtin import ADVANTAGES, LOSS_MASK, PROXIMAL, REWARDS, graph_of
from areal.dataflow.own import graph_of_json, json_of_graph, own_graph, stand_in
from areal.dataflow.running import inputs_of, run_stage
from areal.dataflow.stages import Column, Graph, Stage
from areal.errors import DataError
from areal.spec import load_job
from areal.workflow.recipe import load_recipe
from areal.yaml_file.document import read_document

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "own_graph.yaml"
TOTAL = Column("total", "sequence", "float64")
SPEC = load_job(EXAMPLE).spec


def total(columns):
    return {"total": columns["rewards"] * 2}


def graph(run=total, *, reads=(REWARDS,), writes=(TOTAL,), instead_of=REWARDS, advantages=TOTAL):
    def make(ctx):
        made = ctx.builtin.before("advantages", ctx.stage("own", run, reads=reads, writes=writes))
        return made.reading("advantages", advantages, instead_of=instead_of)

    return make


def test_the_example_fits_is_drawn_and_takes_the_total_for_rewards():
    recipe = load_recipe(EXAMPLE.with_suffix(".py"))
    made = own_graph(recipe.graph, SPEC, frozenset())
    assert stand_in(made, graph_of(SPEC), "advantages") == "total_rewards"
    assert stand_in(graph_of(SPEC), graph_of(SPEC), "advantages") == "rewards"
    told = graph_of_json(json_of_graph(made))
    assert "  brevity (compute · recipe)\n    ← generate: loss_mask\n    ← score: rewards\n" in draw.text(told)
    assert "← brevity: total_rewards" in draw.text(told)
    stage, mask = made.stage("brevity"), np.array([False, True, True, False, True])
    inputs = inputs_of(stage, {"rewards": np.array([1.0, 0.0]), "loss_mask": mask}, np.array([0, 3, 5]))
    assert run_stage(stage, stage.run, inputs)["total_rewards"] == pytest.approx([0.98, -0.01])


def beside(name: str, stage: Stage):
    return lambda ctx: ctx.builtin.before(name, stage)


def without(name: str):
    return lambda ctx: Graph(tuple(stage for stage in ctx.builtin.stages if stage.name != name))


LATE = Column("late", "token", "float64")
ROWS = Column("total", "row", "float64")
REFUSED = [
    (lambda ctx: 1 / 0, "ZeroDivisionError"),
    (lambda ctx: None, "returns a NoneType"),
    (graph(reads=(replace(REWARDS, dtype="float32"),)), "own reads rewards as float32 by sequence, score writes"),
    (graph(reads=(Column("rewrads", "sequence", "float64"),)), r"no stage before it writes \(there is rewards\)"),
    (graph(reads=(PROXIMAL,)), "own reads proximal, which no stage before it writes"),
    (graph(advantages=LOSS_MASK, instead_of=None), "nothing reads total"),
    (graph(writes=(ROWS,), advantages=ROWS), "own writes columns by sequence or by token"),
    (graph(instead_of=LOSS_MASK), "rewards alone may be replaced"),
    (graph(instead_of=None), "nothing uses total"),
    (graph(lambda columns: {"total": columns["rewards"][:1]}), r"writes total as float64\[1\], its graph says"),
    (graph(lambda columns: {"total": columns["rewards"].astype("f4")}), "as float32"),
    (graph(lambda columns: {"other": columns["rewards"]}), "own writes"),
    (graph(lambda columns: {"total": columns["truncated"]}), "own fails: KeyError: 'truncated' is no column that it"),
    (graph(lambda columns: {}["x"]), "the recipe's stage own fails: KeyError: 'x'"),
    (graph(lambda columns: columns["rewards"].fill(0.0)), "read-only"),
    (lambda ctx: Graph(ctx.builtin.stages[1:]), "generate reads prompts, which no stage"),
    (lambda ctx: ctx.builtin.reading("publish", REWARDS), "publish is built in"),
    (beside("advantages", Stage("own", "infer", model="judge")), "own has no function"),
    (beside("advantages", Stage("own", "infer", run=total)), "own names a model when it asks or trains one"),
    (lambda ctx: ctx.builtin.replacing("score", replace(ctx.builtin.stage("score"), run=total)), "outside the step"),
    (without("publish"), "publish is missing: a built-in stage may get another function, and stays"),
    (lambda ctx: ctx.builtin.reading("update policy", REWARDS), "nothing uses rewards: let it replace advantages"),
    (graph(writes=(TOTAL, LATE)), "nothing reads late"),
]


@pytest.mark.parametrize(("make", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_what_does_not_fit_is_told_before_a_run(make, told):
    with pytest.raises(DataError, match=told):
        own_graph(make, SPEC, frozenset())


def test_a_column_beside_the_rewards_is_for_a_recipe_with_advantages_of_its_own():
    made = own_graph(graph(instead_of=None), SPEC, frozenset({"compute_advantages"}))
    assert stand_in(made, graph_of(SPEC), "advantages") == "rewards"


@pytest.mark.component
def test_check_draws_the_example_and_refuses_a_recipe_whose_graph_does_not_fit(tmp_path, capsys):
    assert graph_command(read_document(EXAMPLE), [f"recipe.file={EXAMPLE.with_suffix('.py')}"], "-") == 0
    assert "brevity (compute · recipe)" in capsys.readouterr().out
    wrong = tmp_path / "wrong.py"
    wrong.write_text(EXAMPLE.with_suffix(".py").read_text().replace("reads=(REWARDS, LOSS_MASK)", "reads=(REWARDS,)"))
    with pytest.raises(DataError, match="brevity fails: KeyError: 'loss_mask'"):
        graph_command(read_document(EXAMPLE), [f"recipe.file={wrong}"], "-")


def test_a_stage_after_the_advantages_may_stand_in_for_them_or_be_for_the_loss():
    def make(ctx, instead_of=ADVANTAGES):
        halved = ctx.stage("halve", lambda c: {"late": c["advantages"] / 2}, reads=(ADVANTAGES,), writes=(LATE,))
        return ctx.builtin.after("advantages", halved).reading("update policy", LATE, instead_of=instead_of)

    made = own_graph(make, SPEC, frozenset())
    assert stand_in(made, graph_of(SPEC), "update policy") == "late"
    with pytest.raises(DataError, match=r"define compute_loss with batch\.columns"):
        own_graph(lambda ctx: make(ctx, None), SPEC, frozenset({"compute_advantages"}))
    made = own_graph(lambda ctx: make(ctx, None), SPEC, frozenset({"compute_loss"}))
    assert stand_in(made, graph_of(SPEC), "update policy") == "advantages"
