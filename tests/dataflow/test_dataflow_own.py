"""A recipe's own graph: what fits is run and drawn, what doesn't is told before a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from areal.cli.graph import graph_command
from areal.dataflow import draw
from areal.dataflow.builtin import LOSS_MASK, PROXIMAL, REWARDS, graph_of
from areal.dataflow.own import StageInputs, graph_of_json, json_of_graph, own_graph, reward_column, run_stage
from areal.dataflow.running import StepColumns
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
    made = own_graph(recipe.graph, SPEC, own_advantages=False)
    assert reward_column(made) == "total_rewards"
    assert reward_column(graph_of(SPEC)) == "rewards"
    told = graph_of_json(json_of_graph(made))
    assert "  brevity (compute · recipe)\n    ← generate: loss_mask\n    ← score: rewards\n" in draw.text(told)
    assert "← brevity: total_rewards" in draw.text(told)
    step = StepColumns(made, sequences=2, tokens=5)
    mask = np.array([False, True, True, False, True])
    inputs = StageInputs({"rewards": np.array([1.0, 0.0]), "loss_mask": mask}, np.array([0, 3, 5]))
    assert run_stage(made.stage("brevity"), inputs, step)["total_rewards"] == pytest.approx([0.98, -0.01])


def beside(name: str, stage: Stage):
    return lambda ctx: ctx.builtin.before(name, stage)


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
    (graph(lambda columns: {"total": columns["truncated"]}), "the recipe's stage own fails: KeyError"),
    (graph(lambda columns: columns["rewards"].fill(0.0)), "read-only"),
    (lambda ctx: Graph(ctx.builtin.stages[1:]), "generate reads prompts, which no stage"),
    (lambda ctx: ctx.builtin.reading("update policy", REWARDS), "update policy is built in"),
    (beside("publish", Stage("own", "compute", (REWARDS,), run=total)), "directly before the advantages"),
    (beside("advantages", Stage("own", "infer", model="judge")), "only the recipe's own have a function"),
    (beside("advantages", Stage("own", "infer", model="judge", run=total)), "names no model"),
]


@pytest.mark.parametrize(("make", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_what_does_not_fit_is_told_before_a_run(make, told):
    with pytest.raises(DataError, match=told):
        own_graph(make, SPEC, own_advantages=False)


def test_a_column_beside_the_rewards_is_for_a_recipe_with_advantages_of_its_own():
    made = own_graph(graph(instead_of=None), SPEC, own_advantages=True)
    assert reward_column(made) == "rewards"


@pytest.mark.component
def test_check_draws_the_example_and_refuses_a_recipe_whose_graph_does_not_fit(tmp_path, capsys):
    assert graph_command(read_document(EXAMPLE), [f"recipe.file={EXAMPLE.with_suffix('.py')}"], "-") == 0
    assert "brevity (compute · recipe)" in capsys.readouterr().out
    wrong = tmp_path / "wrong.py"
    wrong.write_text(EXAMPLE.with_suffix(".py").read_text().replace("reads=(REWARDS, LOSS_MASK)", "reads=(REWARDS,)"))
    with pytest.raises(DataError, match="brevity fails: KeyError: 'loss_mask'"):
        graph_command(read_document(EXAMPLE), [f"recipe.file={wrong}"], "-")
