"""Each broken rule is caught by some seed among a few: the simulation has the power that its silence claims."""

from __future__ import annotations

import pytest
from areal.sim.run import simulate
from areal.sim.scenario import Aim, draw
from sim_mutants import MUTANTS

_SEEDS = 400

_CAUGHT_BY = {  # mutants that chance alone finds too rarely, and what to aim at
    "tombstones_below_the_cursor_are_not_held_back": Aim.BATCH_IN_HAND,
    "credit_is_given_before_the_journal": Aim.TOMBSTONE,
    "a_group_takes_the_current_eta": Aim.ETA,
    "waiting_groups_keep_their_slots": Aim.ROLL_BACK,
    "an_advance_is_never_refused": Aim.PART_IN_HAND,
    "a_cursor_is_acknowledged_before_the_journal": Aim.CURSOR,
    "a_ledger_without_the_trainers_position_is_believed": Aim.POSITION,
    "floor_is_frozen_at_admission": Aim.FALLEN_RANKS,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    aim = _CAUGHT_BY.get(name)
    caught = next((seed for seed in range(_SEEDS) if simulate(draw(seed, aim)).problems), None)
    assert caught is not None, f"{_SEEDS} schedules did not notice: {MUTANTS[name].__doc__}"
