"""The rows of metrics.jsonl: JSON whatever was earned, and rates of what was trained."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter
from areal_trainer.checkpoint.saving import RunPosition, SavedCheckpoint
from areal_trainer.critic import CriticFigures
from areal_trainer.data.batch import TokenBatch
from areal_trainer.reporting import PHASES, Reporter, StepLog

BOARD = Path(__file__).parents[2] / "charts" / "areal" / "files" / "dashboards" / "rljob.json"


def row_of(
    tmp_path: Path,
    rewards: list[float],
    *,
    trained: int,
    samples: tuple[int, ...] = (0, 1),
    counted: tuple[bool, ...] | None = None,
    masked: tuple[int, ...] = (),
    figures: dict[str, float] | None = None,
    metrics: RoleMetrics | None = None,
    everything: bool = False,
) -> dict[str, Any]:
    """The row of step 3, whose sequences have four tokens each and belong to these samples of group 0.

    The sequence k was sampled by version k; no gradient reaches the `masked` ones. All are `counted` unless it says
    which. With `everything` there are a
    critic, a teacher, router losses and a second rank.
    """
    sequences = len(samples)
    batch = TokenBatch(
        token_ids=np.zeros(4 * sequences, np.int64),
        behaviour_logprobs=np.zeros(4 * sequences, np.float32),
        loss_mask=~np.repeat(np.isin(np.arange(sequences), masked), 4),
        versions=np.repeat(np.arange(sequences), 4),
        offsets=np.arange(0, 4 * sequences + 1, 4),
        group_ids=np.zeros(sequences, np.int64),
        sample_indices=np.array(samples),
        rewards=np.array(rewards),
        truncated=np.zeros(sequences, np.bool_),
    )
    scored = np.zeros(4 * sequences) if everything else None
    critic = CriticFigures(1.0, 0.0, 0.5, 0.5, 0.9, 1.0, 1e-5, 1, 1) if everything else None
    advantages = SimpleNamespace(
        values=np.zeros(sequences),
        trained=np.zeros(sequences, bool),
        counted=np.ones(sequences, bool) if counted is None else np.array(counted),
        zero_variance_groups=1,
        columns=SimpleNamespace(proximal=scored, teacher_logprobs=scored),
    )
    loss = SimpleNamespace(
        loss=math.nan, clip_ratio=math.inf, rejected_ratio=0.0, approx_kl=0.0, reference_kl=0.0,
        behaviour_weight_mean=1.0, behaviour_weight_max=1.0, behaviour_gap=0.0,
        logprob_mismatch=0.0, logprob_mismatch_max=0.0, entropy=0.0, tokens=trained,
    )  # fmt: skip
    update = SimpleNamespace(finite=True, loss=loss, grad_norm=0.0, learning_rate=1e-4, applied=0, tried=0, begun=0)
    update.critic = critic
    losses = ("router_aux_loss", "router_z_loss", "router_load_max")
    update.router = dict.fromkeys(losses, 2.0) if everything else {}
    metrics = metrics or RoleMetrics("trainer", "digits")
    reporter = Reporter(tmp_path / "metrics.jsonl", None, 1, metrics, ProgressCounter())
    reporter.step(
        3, batch, advantages, update, {"train": 0.001}, others=[[0.1] * len(PHASES)] * everything, figures=figures
    )  # type: ignore[arg-type]
    reporter.close()

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    row: dict[str, Any] = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    return row


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_row_is_json_whatever_the_rewards_are(tmp_path: Path) -> None:
    row = row_of(tmp_path, [-1e308, -1e308], trained=0)
    assert row["reward_mean"] is None
    assert row["clip_ratio"] is None


def test_figures_of_ones_own_are_in_the_row_in_tensorboard_and_in_prometheus_by_name(tmp_path: Path) -> None:
    metrics = RoleMetrics("trainer", "digits")
    row = row_of(tmp_path, [1.0, 0.0], trained=2, figures={"format": 0.25, "worst": math.inf}, metrics=metrics)
    assert row["figures"] == {"format": 0.25, "worst": None}
    told = {
        sample.labels["figure"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "areal_trainer_figure"
    }
    assert told == {"format": 0.25}


def test_every_number_of_the_row_is_in_prometheus_by_its_name_there(tmp_path: Path) -> None:
    metrics = RoleMetrics("trainer", "digits")
    row = row_of(tmp_path, [1.0, 0.0], trained=2, metrics=metrics, everything=True)
    told = {
        sample.labels["figure"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "areal_trainer_row"
    }
    numbers = {name: value for name, value in row.items() if value is None or isinstance(value, int | float)}
    assert told.keys() == numbers.keys() - {"step", "fence", "at"}
    assert row["loss"] is None
    assert math.isnan(told["loss"])
    assert all(told[name] == numbers[name] for name in told if numbers[name] is not None)
    shown = set(re.findall(r'areal_trainer_row{[^}]*figure=\\"(\w+)', BOARD.read_text()))
    assert shown
    assert shown <= row.keys(), "a panel shows a figure that no row has"


SERIES_OF = {"seconds": "areal_trainer_step_duration_seconds", "figures": "areal_trainer_figure"}
"""The series of a row's figures that have names within them."""
NO_SERIES = {
    "step": "Prometheus has a time axis; areal_rljob_progress_step is the newest",
    "fence": "which start of the trainer wrote the row: areal_rljob_epoch",
    "at": "when: the time axis",
    "policy_id": "a text: version and fence",
    "rank_seconds": "of ranks beyond the first, for `areal why --slow`; by rank and phase they would be thousands",
}
NOT_SHOWN = {
    "policy_version": "areal_trainer_policy_version is shown",
    "critic_learning_rate": "a constant, or the policy's schedule",
    "critic_updates": "as many as the policy's",
}


def test_every_figure_of_a_row_has_a_series_and_a_panel_or_a_reason_why_not(tmp_path: Path) -> None:
    metrics = RoleMetrics("trainer", "digits")
    row = row_of(tmp_path, [1.0, 0.0], trained=2, figures={"format": 0.25}, metrics=metrics, everything=True)
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    rows = {sample.labels["figure"] for sample in samples if sample.name == "areal_trainer_row"}
    assert row.keys() - rows == SERIES_OF.keys() | NO_SERIES.keys()
    assert not rows & NO_SERIES.keys()
    assert {sample.labels["figure"] for sample in samples if sample.name == SERIES_OF["figures"]} == {"format"}
    phases = {sample.labels["phase"] for sample in samples if sample.name == f"{SERIES_OF['seconds']}_sum"}
    assert phases == {"train"}  # all that this step was told
    assert row["seconds"].keys() == set(PHASES)
    board = BOARD.read_text()
    assert all(name in board for name in SERIES_OF.values())
    assert rows - set(re.findall(r'areal_trainer_row{[^}]*figure=\\"(\w+)', board)) == NOT_SHOWN.keys()


def test_answers_are_measured_by_sample(tmp_path: Path) -> None:
    row = row_of(tmp_path, [1.0, 1.0, 1.0, 0.0], trained=4, samples=(0, 0, 0, 1))
    assert row["answer_tokens_mean"] == (12 + 4) / 2
    assert row["answer_tokens_p95"] == pytest.approx(4 + 0.95 * 8)
    assert row["truncated_ratio"] == 0.0


def test_a_step_that_trained_nothing_has_no_rate(tmp_path: Path) -> None:
    row = row_of(tmp_path, [1.0, 1.0], trained=0)
    assert (row["tokens_per_s"], row["tokens"], row["trained_tokens"], row["updates"]) == (0.0, 8, 0, 0)


def test_rewards_and_staleness_are_counted_by_sample(tmp_path: Path) -> None:
    row = row_of(tmp_path, [1.0, 1.0, 1.0, 0.0], trained=4, samples=(0, 0, 0, 1))
    assert (row["reward_mean"], row["reward_std"]) == (0.5, 0.5)
    assert (row["staleness_mean"], row["staleness_max"]) == (1.5, 3)  # sample 0 holds version 0, sample 1 version 3
    assert (row["samples"], row["sequences"]) == (2, 4)


def test_tokens_that_are_not_trained_have_no_age(tmp_path: Path) -> None:
    row = row_of(tmp_path, [1.0, 1.0, 1.0, 0.0], trained=4, samples=(0, 0, 1, 2), masked=(0, 3))
    assert (row["staleness_mean"], row["staleness_max"]) == (1.5, 2)  # versions 1 and 2; sample 2 trains nothing


def test_a_sample_that_its_deadline_cut_off_is_in_no_mean_of_rewards(tmp_path: Path) -> None:
    row = row_of(tmp_path, [1.0, 0.0, 1.0], trained=3, samples=(0, 1, 2), counted=(True, False, True))
    assert (row["reward_mean"], row["reward_std"], row["samples"]) == (1.0, 0.0, 3)


def test_tensorboard_shows_a_step_that_was_trained_again_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, end in ((0, 5), (3, 6)):  # a trainer that died after step 4, and the next from its checkpoint of step 3
        log = StepLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", RoleMetrics("trainer", "digits"))
        for step in range(first, end):
            log.write({"step": step, "loss": float(first)})
            log.chart("figures", step, {"right": float(step)})
        log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("trainer/loss")] == list(enumerate([0, 0, 0, 3, 3, 3]))
    assert [(one.step, one.value) for one in events.Scalars("figures/right")] == [(step, step) for step in range(6)]


def test_a_checkpoints_time_and_size_are_shown(tmp_path: Path) -> None:
    metrics = RoleMetrics("trainer", "job")
    path = tmp_path / "step-1"
    path.mkdir()
    for name, size in (("a", 1000), ("b", 24)):
        (path / name).write_bytes(b"x" * size)
    reporter = Reporter(tmp_path / "metrics.jsonl", None, 1, metrics, ProgressCounter())
    reporter.checkpoint(SavedCheckpoint(RunPosition(1, 0), path, 2.5))
    shown = {sample.name: sample.value for family in metrics.registry.collect() for sample in family.samples}
    assert shown["areal_checkpoint_bytes"] == 1024
    assert shown["areal_checkpoint_duration_seconds_sum"] == 2.5
