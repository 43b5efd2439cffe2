"""Turns on shared cards: when they end, who is told, and what never ends one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.cards import ServerPhase
from areal.errors import ConfigError
from areal.observe.live import IdleCause
from areal.rollout.contract.values import EvaluationAnswer
from areal.rollout.controller.core import CardDemand, CardTurns
from areal.rollout.controller.decisions import CallAnswer, GrantLease, LeaseEvaluation, Notice
from areal.rollout.controller.inputs import (
    AdvanceTrainer,
    AttachTrainer,
    PublishWeights,
    SetHotFields,
    TrainerBeat,
    TrainerReport,
)
from controller_bench import SETTINGS, B, Bench, weights
from hypothesis import given
from hypothesis import strategies as st

SHARED = replace(SETTINGS, shared_cards=True, filter_zero_variance=False)
DEMANDS = st.builds(CardDemand, st.integers(0, 12), st.booleans(), st.booleans(), st.booleans(), st.booleans())


@given(st.lists(DEMANDS, max_size=30))
def test_turns_alternate_and_only_the_living_trainer_ends_its_own(demands) -> None:
    turns = CardTurns(1, 0.0)
    for now, demand in enumerate(demands):
        number, training = turns.number, turns.training
        changed = turns.judge(demand, float(now))
        assert changed == (turns.number == number + 1) == (turns.training is not training)
        if changed and training:
            assert demand.given_back >= number
        if changed and not training and demand.evaluating:
            assert demand.wanted


def beat(bench: Bench, turn: int = 0, *, wants: bool = False, fence: int = 1) -> None:
    bench.take(TrainerBeat(TrainerReport(fence, 0, 0, turn=turn, wants_cards=wants)))


def generating(**settings: object) -> Bench:
    """The trainer attached, published and gave the cards back; two groups are leased."""
    bench = Bench(settings=replace(SHARED, **settings))
    bench.worker()
    bench.ask(AttachTrainer(1, 0))
    bench.ask(PublishWeights(1, weights(0)))
    assert bench.core.turns is not None
    assert bench.core.turns.training
    assert bench.idle.cause is IdleCause.TRAINING_TURN
    assert "turn 1" in bench.idle.text
    beat(bench, bench.core.turns.number)
    assert not bench.core.turns.training
    bench.server(0)
    return bench


def test_a_batch_that_is_whole_ends_generation_and_what_else_runs_is_kept() -> None:
    bench = generating()
    turns = bench.core.turns
    assert {grant.group for grant in bench.all(GrantLease)} == {0, 1, 2, 3}
    bench.done(0)
    assert not turns.training
    bench.done(1)
    assert turns.training
    assert Notice.TURN_CHANGED in bench.seen
    bench.server(0, ready=False, phase=ServerPhase.ASLEEP)
    assert bench.core.fleet.servers["s"].state == "asleep"
    assert bench.core.fleet.servers["s"].live
    assert not bench.core.fleet.servers["s"].routable
    assert bench.core.book.groups[2].worker == "w"
    bench.ask(AdvanceTrainer(1, 0, B))
    beat(bench, turns.number - 1)
    assert turns.training, "the end of an earlier turn ends none"
    beat(bench, turns.number)
    assert not turns.training


def test_no_deadline_runs_and_nobody_is_dead_while_servers_sleep() -> None:
    bench = generating()
    bench.done(0)
    bench.done(1)
    spent = bench.core.book.groups[2].spent_s
    for _ in range(200):
        bench.now += 0.5
        bench.worker()
        bench.server(0, ready=False, phase=ServerPhase.ASLEEP)
        bench.core.tick(bench.now)
        bench.run()
    assert bench.core.book.groups[2].spent_s == spent
    assert bench.core.fleet.servers["s"].state == "asleep"


def test_a_dead_trainer_keeps_its_turn_and_what_it_said_before_counts_no_more() -> None:
    bench = generating()
    bench.done(0)
    bench.done(1)
    turns = bench.core.turns
    bench.ask(AttachTrainer(2, 0))
    beat(bench, turns.number)  # of the fence before
    assert turns.training
    beat(bench, turns.number, fence=2)
    assert turns.training is bench.core.desk.batch_whole


def test_an_evaluation_has_its_turn_before_the_batch() -> None:
    bench = generating(evaluation_interval=1, evaluation_rows=1)
    (row,) = bench.all(LeaseEvaluation)
    bench.done(0)
    bench.done(1)
    assert not bench.core.turns.training
    bench.worker(evaluated=(EvaluationAnswer(row.evaluation_id, row.row, 1.0, 0, 0),))
    assert bench.core.turns.training


def test_a_trainer_that_must_save_is_not_kept_waiting_by_generation() -> None:
    bench = generating()
    beat(bench, 1, wants=True)
    assert bench.core.turns.training


def test_a_trainer_that_gives_the_cards_back_and_at_once_wants_them_gets_another_turn() -> None:
    bench = generating()
    number = bench.core.turns.number
    beat(bench, number, wants=True)
    assert (bench.core.turns.number, bench.core.turns.training) == (number + 1, True)
    beat(bench, number + 1, wants=True)  # the run was shortened just then
    bench.core.tick(bench.now)
    bench.run()
    assert bench.core.turns.number == number + 3
    assert bench.core.turns.training


def test_where_nothing_is_left_to_generate_a_trainer_that_is_gone_gets_the_cards() -> None:
    bench = generating(max_steps=1)
    bench.done(0)
    bench.done(1)
    bench.ask(AdvanceTrainer(1, 0, B))
    beat(bench, bench.core.turns.number)
    assert not bench.core.turns.training
    for _ in range(8):
        bench.now += 0.5
        bench.worker()
        bench.server(0)
        bench.core.tick(bench.now)
        bench.run()
    assert bench.core.turns.training, "it starts again: without the cards it can't even load its model"


def test_an_earlier_controllers_turns_are_all_below() -> None:
    bench = Bench(settings=SHARED, rebuilt=replace(Bench().rebuilt, first_turn=3 << 20))
    assert bench.core.turns.number == 3 << 20
    assert bench.core.turns.count == 1
    assert Bench().core.turns is None


@pytest.mark.parametrize("staleness", [1, 2])
def test_nobody_raises_staleness_beyond_what_turns_allow(staleness: int) -> None:
    answer = generating().ask(SetHotFields(max_staleness=staleness))
    assert isinstance(answer, CallAnswer)
    assert isinstance(answer.error, ConfigError) is (staleness > 1)
