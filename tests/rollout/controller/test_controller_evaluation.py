"""Evaluations with sampled answers, of several sets, and of one version that servers keep until the end."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from areal.observe.live import IdleCause
from areal.record.run_rows import Records
from areal.rollout.contract.values import BLIND, NOTHING_WITHHELD, EvaluationAnswer, FailureKind
from areal.rollout.controller.decisions import LeaseEvaluation, RecordEvaluation, WantWeights
from areal.rollout.controller.evaluation import BlindLook, Evaluations, trains_blind
from areal.rollout.controller.inputs import PublishWeights
from areal.rollout.controller.kept import EvaluationsFile
from areal.rollout.controller.settings import TrainPosition
from areal.weights.exports import scores_in
from controller_bench import SETTINGS, Bench, started, weights

SAMPLED = replace(
    SETTINGS,
    evaluation_interval=2,
    evaluation_rows=3,
    evaluation_samples=2,
    evaluation_pass_at=(1, 2),
    evaluation_sets=("easy", "easy", "hard"),
)
PINNED = replace(SETTINGS, evaluation_interval=2, evaluation_rows=1, evaluation_pins=True)


def answer(bench: Bench, row: int, sample: int, score: float) -> None:
    bench.worker(evaluated=(EvaluationAnswer("0.f1", row, score, 0, 0, sample=sample),))


def measured(wrong: bool = True) -> RecordEvaluation:
    """Greedy 1, 0, 1; samples (1, 0), (0, failed), (1, 1)."""
    bench = started(replace(SAMPLED, evaluation_failed_are_wrong=wrong))
    assert [(one.row, one.sample) for one in bench.all(LeaseEvaluation)] == [(r, s) for r in range(3) for s in range(3)]
    for row, scores in enumerate(((1.0, 1.0, 0.0), (0.0, 0.0, None), (1.0, 1.0, 1.0))):
        for sample, score in enumerate(scores):
            if score is not None:
                answer(bench, row, sample, score)
    assert not bench.all(RecordEvaluation)
    bench.worker(evaluated=(EvaluationAnswer("0.f1", 1, kind=FailureKind.EXCEPTION, sample=2),))
    (record,) = bench.all(RecordEvaluation)
    return record


def test_sampled_answers_stand_beside_the_greedy_ones_and_each_set_has_its_figures() -> None:
    record = measured()
    assert record.mean == pytest.approx(2 / 3)
    assert (record.rows, record.failed_rows, record.failed_samples) == (3, 0, 1)
    assert record.figures == pytest.approx({"avg@2": 0.5, "pass@1": 0.5, "pass@2": 2 / 3})
    assert record.sets["easy"] == pytest.approx({"rows": 2, "mean": 0.5, "avg@2": 0.25, "pass@1": 0.25, "pass@2": 0.5})
    assert record.sets["hard"] == pytest.approx({"rows": 1, "mean": 1.0, "avg@2": 1.0, "pass@1": 1.0, "pass@2": 1.0})


def test_a_failed_answer_left_out_leaves_a_row_with_fewer_samples() -> None:
    record = measured(wrong=False)
    assert record.failed_samples == 1
    assert record.figures == pytest.approx({"avg@2": 0.5, "pass@1": 0.5})  # pass@2 needs two answers of every row


def test_the_file_tells_readers_of_records_and_of_exports_the_same(tmp_path) -> None:
    EvaluationsFile(tmp_path / "evaluations.jsonl").append(measured())
    (line,) = (tmp_path / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(line)["failed_samples"] == 1
    (found,) = Records(tmp_path / "metrics.jsonl", tmp_path / "evaluations.jsonl").refresh().held_out
    assert found.figures == pytest.approx({"avg@2": 0.5, "pass@1": 0.5, "pass@2": 2 / 3})
    for metric, value in (("mean", 2 / 3), ("avg@2", 0.5), ("easy/pass@2", 0.5), ("hard/mean", 1.0)):
        assert scores_in(tmp_path / "evaluations.jsonl", metric)[0].figure == pytest.approx(value)
    assert scores_in(tmp_path / "evaluations.jsonl", "none/mean") == {}


def test_servers_keep_a_version_until_its_evaluation_has_ended() -> None:
    bench = started(PINNED)
    for version in (1, 2, 3):
        bench.ask(PublishWeights(1, weights(version)))
    assert bench.core.fleet.served == weights(3)
    assert bench.core.wanted == weights(0)
    bench.worker(evaluated=(EvaluationAnswer("0.f1", 0, 1.0, 0, 0),))
    assert bench.core.wanted == weights(3)
    assert bench.all(WantWeights)[-1] == WantWeights(weights(3))
    assert len(bench.all(LeaseEvaluation)) == 1  # of version 3, which no server has yet: 2 was due meanwhile
    bench.server(3)
    bench.ask(PublishWeights(1, weights(4)))
    assert bench.core.wanted == weights(3)
    assert [one.evaluation_id for one in bench.all(LeaseEvaluation)] == ["0.f1", "3.f1"]


def test_a_gate_that_an_evaluation_holds_closed_says_so() -> None:
    bench = started(PINNED)
    for group in range(4):
        bench.done(group)
    bench.ask(PublishWeights(1, weights(1)))
    assert bench.idle.cause is IdleCause.ONE_VERSION
    assert "the evaluation of version 0 keeps the servers at it" in bench.idle.text


def test_a_rollback_frees_servers_from_what_was_being_measured() -> None:
    bench = started(PINNED)
    bench.ask(PublishWeights(1, weights(1)))
    assert bench.core.wanted == weights(0)
    bench.core.evaluations.published(weights(0, 2, rollback=True))
    assert bench.core.evaluations.pinned is None


def test_an_evaluation_begins_with_the_settings_of_its_moment() -> None:
    emitted: list[object] = []
    position = TrainPosition(PINNED)
    evaluations = Evaluations(position, [], emitted.append)
    position.settings = replace(PINNED, evaluation_rows=3, evaluation_samples=1, evaluation_concurrent=4)
    evaluations.published(weights(0))
    evaluations.lease(["w"], 0, 0.0)
    assert [(run.rows, run.samples) for run in evaluations.runs] == [(3, 1)]
    assert len(emitted) == 4


def test_last_weights_that_a_restarted_trainer_publishes_again_are_measured_once() -> None:
    emitted: list[object] = []
    evaluations = Evaluations(TrainPosition(PINNED), [], emitted.append)
    first = replace(weights(0), content_digest="c" * 64)
    again = replace(weights(0, 2), content_digest="c" * 64)
    assert not evaluations.final(first)
    assert not evaluations.final(again)
    assert [run.name for run in evaluations.runs] == [first.evaluation]
    assert Evaluations(TrainPosition(PINNED), [first.evaluation], emitted.append).final(again)


BLIND_ROWS = tuple(range(0, 40, 2))
WITH_IMAGES = replace(SETTINGS, evaluation_interval=1, evaluation_rows=40, evaluation_blind=BLIND_ROWS)


def looked(bench: Bench, version: int, seen: float, blind: float) -> None:
    """Every answer of an evaluation; so many of the rows with images are right, with them and without."""
    name, leases = f"{version}.f1", bench.all(LeaseEvaluation)
    units = [(one.row, one.sample) for one in leases if one.evaluation_id == name]
    assert sorted(units) == sorted([*((row, 0) for row in range(40)), *((row, BLIND) for row in BLIND_ROWS)])
    for row, sample in units:
        right = row / 40 < (blind if sample == BLIND else seen)
        answered = EvaluationAnswer(name, row, float(right), version, version, sample=sample)
        bench.worker(evaluated=(answered,))


def run_of(*scores: tuple[float, float]) -> Bench:
    """A run with an evaluation for each pair, of versions 0, 1, 2 …"""
    bench = started(replace(WITH_IMAGES, evaluation_concurrent=100))
    for version, (seen, blind) in enumerate(scores):
        if version:
            bench.ask(PublishWeights(1, weights(version)))
            bench.server(version)
            bench.later(0.5)
        looked(bench, version, seen, blind)
    return bench


def test_rows_with_images_are_answered_blind_too_and_both_means_are_recorded() -> None:
    bench = run_of((0.5, 0.25))
    (record,) = bench.all(RecordEvaluation)
    assert (record.rows, record.mean, record.failed_samples) == (40, 0.5, 0)
    assert (record.figures["seen"], record.figures["blind"]) == (0.5, 0.25)


def test_a_model_that_learns_without_its_images_stops_the_run_with_a_sentence() -> None:
    bench = run_of((0.0, 0.0), (0.9, 0.9))
    assert bench.core.stalled == "", "one look may be chance"
    bench = run_of((0.0, 0.0), (0.9, 0.9), (0.9, 0.9))
    assert "trained blind" in bench.core.stalled
    assert "rose from 0.00 to 0.90" in bench.core.stalled
    assert bench.idle.cause is IdleCause.STALLED
    admitted = bench.core.book.next_admission
    bench.later(1.0)
    assert bench.core.book.next_admission == admitted


@pytest.mark.parametrize(
    "scores",
    [
        [(0.0, 0.0), (0.9, 0.0), (0.9, 0.0)],  # it looks at its images
        [(0.5, 0.5), (0.5, 0.5), (0.5, 0.5)],  # it learnt nothing
        [(0.9, 0.9), (0.5, 0.5), (0.5, 0.5)],  # it forgot
        [(0.0, 0.0), (0.9, 0.9), (0.9, 0.1)],  # it learnt to look at them
        [(0.0, 0.0), (0.9, 0.1), (0.9, 0.9)],  # once only
    ],
)
def test_a_model_that_sees_learns_nothing_or_learns_to_look_goes_on(scores: list[tuple[float, float]]) -> None:
    assert run_of(*scores).core.stalled == ""


def test_where_nothing_was_withheld_no_answer_is_asked_for_blind_again() -> None:
    """An agent that calls no tools: rows are played twice in its first evaluation, and never after."""
    bench = started(replace(WITH_IMAGES, evaluation_concurrent=100))
    for version in range(3):
        if version:
            bench.ask(PublishWeights(1, weights(version)))
            bench.server(version)
            bench.later(0.5)
        units = [(one.row, one.sample) for one in bench.all(LeaseEvaluation) if one.evaluation_id == f"{version}.f1"]
        assert len(units) == 40 + (len(BLIND_ROWS) if version == 0 else 0)
        for row, sample in units:
            answer = EvaluationAnswer(f"{version}.f1", row, 0.9 * version / 2, version, version, sample=sample)
            if sample == BLIND:
                answer = replace(answer, score=0.0, kind=FailureKind.REJECTED, message=NOTHING_WITHHELD)
            bench.worker(evaluated=(answer,))
    records = bench.all(RecordEvaluation)
    assert [(record.rows, record.mean, record.failed_rows) for record in records] == [
        (40, 0, 0), (40, pytest.approx(0.45), 0), (40, pytest.approx(0.9), 0),
    ]  # fmt: skip
    assert not any("blind" in record.figures for record in records)
    assert bench.core.stalled == ""


def test_a_restarted_controller_knows_what_was_looked_at_before_it() -> None:
    looks = (BlindLook(0.0, 0.0, 0.0, 0.0), BlindLook(0.9, 0.9, 0.05, 0.0))
    rebuilt = replace(Bench().rebuilt, looks=looks, evaluated=("0.f1",))
    bench = started(replace(WITH_IMAGES, evaluation_concurrent=100), rebuilt=rebuilt)
    bench.ask(PublishWeights(1, weights(1)))
    bench.server(1)
    bench.later(0.5)
    assert bench.core.stalled == ""
    looked(bench, 1, 0.9, 0.9)
    assert "trained blind" in bench.core.stalled


def test_of_few_rows_nothing_is_said() -> None:
    assert BlindLook.of([(1.0, 1.0)] * 15) is None
    assert BlindLook.of([(1.0, 0.0), (0.0, 0.0)] * 8) == BlindLook(
        0.5, 0.0, pytest.approx(0.129, abs=1e-3), pytest.approx(0.129, abs=1e-3)
    )


@pytest.mark.parametrize(
    ("start", "seen", "blind", "least", "most"),
    [
        (0.2, 0.5, 0.2, 0.0, 0.002),
        (0.2, 0.5, 0.3, 0.0, 0.005),
        (0.2, 0.22, 0.2, 0.0, 0.002),
        (0.05, 0.3, 0.05, 0.0, 0.002),
        (0.2, 0.5, 0.5, 0.3, 1.0),
        (0.2, 0.9, 0.9, 0.99, 1.0),
    ],
)
def test_false_alarms_are_rare_and_what_is_blind_is_caught(
    start: float, seen: float, blind: float, least: float, most: float
) -> None:
    """Two looks in a row at 128 rows of 0 or 1, drawn a thousand times."""
    draw = np.random.default_rng(7)

    def look(with_images: float, without: float) -> BlindLook:
        pairs = np.stack([draw.random(128) < with_images, draw.random(128) < without], axis=1).astype(float)
        found = BlindLook.of([(float(one), float(other)) for one, other in pairs])
        assert found is not None
        return found

    alarms = sum(bool(trains_blind([look(start, start), look(seen, blind), look(seen, blind)])) for _ in range(1000))
    assert least <= alarms / 1000 <= most
