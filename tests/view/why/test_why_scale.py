"""The scale model against what is published of AReaL (arXiv 2505.24298), closed forms, and a run's own constants."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from areal.errors import ExitCode
from areal_view.why.pace import Constants, play
from areal_view.why.scale import CARDS, RunSpeeds, Workload, best, by_turns, drawn, fixed_and_error, split

PAPER = Workload(512, 16, 27_648, 4, 16, False, 10**6)
"""512 prompts of 16 answers. The paper's gate bounds the mean age; with a bound of 4 × ahead ours has its pace."""
SMALL = replace(PAPER, batch=64)  # has 32 GPUs for the paper's 256: the same with an eighth of the work
FIGURE_5C = {0: 128.7, 1: 269.3, 2: 356.6, 4: 356.6, 8: 371.7, 16: 382.4}
"""Thousand tokens a second by η on 96 + 32 GPUs: 1.5B."""
TABLE_1 = {"qwen2-1.5b-h800": (128, 41.0, 14.8), "qwen2-7b-h800": (192, 57.7, 25.4)}
"""GPUs, hours of 250 steps by turns and asynchronously."""


@pytest.mark.parametrize("eta", FIGURE_5C)
def test_throughput_by_eta_is_the_published_one_within_ten_percent(eta: int) -> None:
    told = split(drawn(CARDS[0], replace(PAPER, ahead=eta, staleness=4 * eta)), 96, 32)
    assert told.tokens_per_s / 1e3 == pytest.approx(FIGURE_5C[eta], rel=0.10)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_asynchrony_brings_the_published_factors(card) -> None:
    gpus, sync_h, async_h = TABLE_1[card.name]
    speeds = drawn(card, PAPER)
    apart = split(speeds, gpus * 3 // 4, gpus // 4)
    assert by_turns(speeds, gpus).step_s / apart.step_s == pytest.approx(sync_h / async_h, rel=0.10)  # 2.77 and 2.27
    # The hours hold evaluations and checkpoints, which nothing tells apart: a step of the model may only be shorter.
    published_s = async_h * 3600 / 250
    assert 0.80 * published_s < apart.step_s < published_s


def test_a_batch_that_grows_with_the_gpus_is_trained_as_fast() -> None:
    one, four = (split(drawn(CARDS[0], replace(SMALL, batch=16 * n)), 3 * n, n) for n in (4, 16))
    assert four.step_s == pytest.approx(one.step_s, rel=0.05)
    assert four.tokens_per_s == pytest.approx(4 * one.tokens_per_s, rel=0.05)


def test_the_same_batch_on_more_gpus_waits_for_its_longest_answers() -> None:
    speeds = drawn(CARDS[0], SMALL)
    steps = [split(speeds, 3 * n, n).step_s for n in (2, 8, 32)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] / steps[1] > 3.5  # four times the GPUs
    assert steps[1] / steps[2] < 3.0
    further = drawn(CARDS[0], replace(SMALL, ahead=16, staleness=64))
    assert split(further, 96, 32).step_s < 0.7 * steps[2]  # more batches beside each other


def test_the_best_split_is_no_slower_than_any_other_and_says_what_each_side_waits() -> None:
    speeds = drawn(CARDS[0], SMALL)
    chosen = best(speeds, 16)
    assert chosen.generation + chosen.training == 16
    others = [split(speeds, generation, 16 - generation) for generation in (8, 11, 12, 13, 15)]
    assert chosen.step_s <= 1.01 * min(one.step_s for one in others)
    many, few = split(speeds, 15, 1), split(speeds, 4, 12)
    assert few.trainer_waits > 0.5 > few.generation_waits
    assert many.generation_waits > few.generation_waits


def test_tokens_grow_older_with_ahead_and_not_with_the_bound() -> None:
    ages = [split(drawn(CARDS[0], replace(SMALL, ahead=a, staleness=16)), 12, 4).age for a in (0, 1, 2, 4)]
    assert ages == pytest.approx([0.0, 1.0, 2.0, 4.0], abs=0.3)


def test_a_server_of_two_gpus_takes_its_gpus_in_pairs() -> None:
    speeds = drawn(replace(CARDS[0], server_gpus=2), SMALL)
    assert best(speeds, 16).generation % 2 == 0
    with pytest.raises(ValueError, match="don't split"):
        best(speeds, 2)


RUN = Constants(
    batch=4, ahead=2, staleness=4, admission_order=False, max_concurrent=64, servers=2, generation_s=0.5,
    latencies_s=[0.5, 2.0], work_s=[2.0, 3.0], swap_s=0.1, hand_over_s=0.1, evaluation_s=0.2,
)  # fmt: skip


def test_a_run_on_its_own_places_is_planned_as_it_was_played() -> None:
    told = split(RunSpeeds(RUN, trainers=2, server_gpus=1, fixed_s=1.0, tokens=1000.0), 2, 2)
    assert told.step_s == play(RUN).step_s
    assert told.tokens_per_s == 1000.0 / told.step_s


def test_more_trainers_divide_what_grows_with_tokens_and_not_the_rest() -> None:
    speeds = RunSpeeds(RUN, trainers=2, server_gpus=1, fixed_s=1.0, tokens=1000.0)
    assert speeds.constants(2, 4, None).work_s == [1.5, 2.0]
    assert speeds.constants(2, 1, None).work_s == [3.0, 5.0]
    assert split(speeds, 30, 1000).step_s == pytest.approx(1.0, rel=0.05)


def test_what_a_step_takes_without_tokens_is_read_from_its_odd_steps_and_judged_on_the_others() -> None:
    tokens = [100.0 * (1 + step % 7) for step in range(40)]
    fixed, error = fixed_and_error(tokens, [0.5 + one / 1000 for one in tokens])
    assert fixed == pytest.approx(0.5)
    assert error == pytest.approx(0.0, abs=1e-9)
    noisy = [0.5 + one / 1000 + (0.3 if step % 2 == 0 else 0.0) for step, one in enumerate(tokens)]
    assert fixed_and_error(tokens, noisy)[1] > 0.2
    assert fixed_and_error([100.0] * 10, [1.0] * 10) == (0.0, pytest.approx(0.0))  # too alike to tell
    assert fixed_and_error([100.0], [1.0]) == (0.0, math.inf)
    assert fixed_and_error(tokens, [0.5 - one / 10_000 for one in tokens])[0] == 0.0  # shorter with more: no line


JOB = """apiVersion: areal.dev/v1alpha1
kind: RLJob
metadata: {name: planned}
spec:
  model: {path: model}
  recipe: {file: digits.py}
  dataset: {train: {jsonl: train.jsonl}}
  algorithm: {name: GRPO, maxSteps: 100, batchSize: 64, groupSize: 16, maxStaleness: 16}
  rollout: {ahead: 4, maxSampleTokens: 30000, maxConcurrentRollouts: 1000, sampling: {maxNewTokens: 27648}}
"""


def test_the_command_prints_the_models_rows(tmp_path: Path, monkeypatch, capsys) -> None:
    from areal.cli.main import app, guarded

    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    assert (
        guarded(lambda: app(["plan", "job.yaml", "--gpus", "16", "--gpus", "8", "--card", "qwen2-1.5b-h800", "--json"]))
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert "figure 5c" in told["constants"][0]
    assert [(row["gpus"], row["how"].split(",")[0]) for row in told["rows"]][:2] == [(8, "by turns"), (8, "apart")]
    sixteen = best(drawn(CARDS[0], replace(SMALL, max_concurrent=1000)), 16)
    row = next(row for row in told["rows"] if row["gpus"] == 16 and row["how"] == "apart, best")
    assert row["step_s"] == sixteen.step_s
    assert guarded(lambda: app(["plan", "job.yaml", "--gpus", "8", "--card", "qwen2-1.5b-h800"])) == 0
    shown = capsys.readouterr().out
    assert "tokens/s" in shown
    assert all(len(line) <= 80 for line in shown.splitlines()[2:])


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--card", "none"], "qwen2-1.5b-h800"),
        ([], "there is no runs/planned to take constants from"),
        (["--run", "nowhere"], "nowhere is no run directory"),
    ],
)
def test_constants_that_are_not_there_are_refused_with_what_to_name(
    words: list[str], answer: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    from areal.cli.main import app, guarded

    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    assert guarded(lambda: app(["plan", "job.yaml", "--gpus", "8", *words])) == ExitCode.CONFIG
    assert answer in capsys.readouterr().err


def test_the_constants_are_the_runs_and_the_gate_is_the_jobs(tmp_path: Path, monkeypatch, capsys) -> None:
    from areal.cli.main import app, guarded
    from areal_view.pages import scaling

    page = SimpleNamespace(
        constants=replace(RUN, batch=64), first_step=0, last_step=9,
        forecast=SimpleNamespace(modelled_s=1.0, measured_s=1.1),
    )  # fmt: skip
    rows = [{"tokens": 1000.0 + step} for step in range(2)]
    spec = {"algorithm": {"batchSize": 64, "groupSize": 16}, "trainer": {"replicas": 2}}
    monkeypatch.setattr(scaling, "read_time", lambda place, steps: (page, rows, spec))
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    Path("run").mkdir()
    Path("run", "resolved.json").write_text("{}")

    def ages(*overrides: str) -> dict[str, float]:
        command = ["plan", "job.yaml", *overrides, "--gpus", "4", "--run", "run", "--json"]
        assert guarded(lambda: app(command)) == 0
        return {row["how"]: row["age"] for row in json.loads(capsys.readouterr().out)["rows"]}

    assert ages()["apart, best"] > ages("rollout.ahead=1")["apart, best"] > 0
    command = ["plan", "job.yaml", "algorithm.batchSize=32", "--gpus", "4", "--run", "run"]
    assert guarded(lambda: app(command)) == ExitCode.CONFIG
    assert "have 64 × 16, not 32 × 16 samples" in capsys.readouterr().err
