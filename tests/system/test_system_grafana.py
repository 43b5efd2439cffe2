"""Grafana's panels over a whole job, as a real Prometheus that scrapes it by the chart's rules answers them."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from areal.plan.resolved import ResolvedJob
from chart.chart_metrics import PANELS, promql, selectors
from chart.chart_rendering import named, render
from support.made import made
from support.prometheus import Prometheus, prometheus, scrape_config, targets

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.kube_api, pytest.mark.timeout(900)]

NAMESPACE = "team-a"  # as in chart_metrics, for `$namespace`; the quickstart's name is its `$rljob`
WINDOW_S = 120.0
OVERRIDES = (  # what makes a quickstart that has every figure
    "algorithm.name=PPO",  # with a critic
    "algorithm.zeroVariance=keep",
    "algorithm.maxSteps=2000",
    "evaluation.intervalSteps=2",
    "evaluation.rows=20",
    "evaluation.samples=2",
)
RECIPE = """
def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    return {"correct": float(completions.strip() == answer), "short": -len(completion_ids) / 100}
"""
NO_SERIES = {
    "areal_rljob_": "the operator serves it, and a run on one machine has none",
    "areal_operator_": "the operator's own",
    "DCGM_": "NVIDIA's exporter, of GPUs",
    "areal_gateway_": "agents that are programs beside the job; here the workflow asks the engine",
    "areal_boxes_": "boxes of a workflow that has some",
    "areal_sandbox_": "the reward service of the platform; here the recipe scores",
    "areal_generation_switch_": "placement: shared",
    "areal_volume_": "weightSync.servers: Fetch",
    "areal_archive_": "storage.store",
}
"""Beginnings of series that this job has no role for, and which do have them."""
NO_FIGURES = {
    "cache_hit_rate": "SGLang counts hits, the embedded engine doesn't",
    "teacher_kl": "a teacher",
    "router_aux_loss": "trainer.routerAuxCoefficient",
    "router_z_loss": "trainer.routerZCoefficient",
    "router_load_max": "either of them",
}


def test_every_panel_of_a_role_that_runs_shows_something(start_job, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE)
    monitor = named(render(values={"monitoring": {"podMonitor": {"enabled": True}}}), "PodMonitor", "areal-jobs")
    run = start_job(*OVERRIDES, f"recipe.file={recipe}")
    run.wait_for("its plan", (run.run_dir / "resolved.json").exists, timeout_s=180)
    found = targets(ResolvedJob.load(run.run_dir), NAMESPACE)
    with prometheus(tmp_path / "prometheus", scrape_config(monitor, found)) as server:
        run.wait_for("some steps", lambda: run.step() >= 6, timeout_s=480)
        evaluated = 'areal_evaluation_figure{figure!="rows"}'
        run.wait_for("an evaluation", lambda: bool(server.drawn(evaluated, WINDOW_S)), timeout_s=120)
        checkpointed = "areal_checkpoint_bytes"
        run.wait_for("a checkpoint", lambda: bool(server.drawn(checkpointed, WINDOW_S)), timeout_s=120)
        assert server.down() == []
        assert server.ask("label/role/values") == [
            "controller", "generation", "reward-custom", "trainer", "worker",
        ]  # fmt: skip
        assert not [name for name in server.ask("labels") if name.startswith("exported_")]
        assert empty_panels(server) == []
        assert [name for name in NO_SERIES if server.drawn(f'{{__name__=~"{name}.+"}}', WINDOW_S)] == []
        assert [name for name in NO_FIGURES if server.drawn(f'{{figure="{name}"}}', WINDOW_S)] == []
        row = run.metrics()[-1]
        time.sleep(3.0)  # two scrapes
        series = {dict(labels)["figure"] for labels in server.drawn("areal_trainer_row", WINDOW_S)}
        told = {dict(labels)["figure"] for labels in server.drawn("areal_trainer_figure", WINDOW_S)}
    numbers = {name for name, value in row.items() if isinstance(value, int | float)}
    assert numbers - series == {"step", "fence", "at"}
    assert told == row["figures"].keys() == {"correct", "short"}


def test_every_panel_of_judged_programs_shows_something(start_job, tmp_path: Path) -> None:
    """A job whose answers, of a model that knows nothing, run in the sandbox of the platform's reward service."""
    made("data/code/heldout.jsonl")
    model = made("models/new-1m/model.safetensors").parent
    small = ("algorithm.batchSize=4", "algorithm.maxSteps=1000", "algorithm.zeroVariance=keep", "evaluation=null")
    monitor = named(render(values={"monitoring": {"podMonitor": {"enabled": True}}}), "PodMonitor", "areal-jobs")
    run = start_job(f"model.path={model}", "metadata.name=digits", job="examples/code_rl.yaml", small=small)
    run.wait_for("its plan", (run.run_dir / "resolved.json").exists, timeout_s=180)
    found = targets(ResolvedJob.load(run.run_dir), NAMESPACE)
    with prometheus(tmp_path / "prometheus", scrape_config(monitor, found)) as server:
        run.wait_for("some steps", lambda: run.step() >= 4, timeout_s=480)
        time.sleep(3.0)  # two scrapes
        assert server.down() == []
        assert "reward" in server.ask("label/role/values")
        queries = [
            promql(target["expr"])
            for _, panel in PANELS
            for target in panel["targets"]
            if any(name.startswith("areal_sandbox_") for name, _ in selectors(promql(target["expr"])))
        ]
        assert len(queries) > 12
        silent = [query for query in queries if not server.drawn(query, WINDOW_S)]
        assert [query for query in silent if "executions" not in query] == []
        assert len(silent) == 1  # no workflow of this job executes programs of its own


def empty_panels(server: Prometheus) -> list[str]:
    """The queries of panels that have neither a number to draw nor a reason to have none."""
    return [
        f"{board}: {panel['title']}: {target['expr']}"
        for board, panel in PANELS
        for target in panel["targets"]
        if not excused(promql(target["expr"])) and not server.drawn(promql(target["expr"]), WINDOW_S)
    ]


def excused(expression: str) -> bool:
    """Whether an expression reads what this job hasn't."""
    names = {name for name, _ in selectors(expression)}
    figures = set(re.findall(r'figure="(\w+)"', expression))
    return any(name.startswith(tuple(NO_SERIES)) for name in names) or bool(figures & NO_FIGURES.keys())
