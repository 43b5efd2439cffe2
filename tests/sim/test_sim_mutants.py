"""Each broken rule is caught by the schedules that the tests run: the simulation has the power its silence claims."""

from __future__ import annotations

import pytest
from sim_mutants import CAUGHT, EQUIVALENT, MUTANTS, SEEDS
from simulation.run import simulate


@pytest.mark.parametrize("name", CAUGHT)
def test_a_broken_rule_is_caught(name: str) -> None:
    look = CAUGHT[name]
    with MUTANTS[name].planted():
        seeds = [look.schedules - 1, *range(SEEDS)]
        caught = next((seed for seed in seeds if simulate(look.scenario(seed)).problems), None)
    assert caught is not None, f"{SEEDS} schedules did not notice"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_changes_the_code_that_it_names_and_leaves_it_whole(name: str) -> None:
    function = getattr(MUTANTS[name].function, "fget", MUTANTS[name].function)
    whole = function.__code__
    with MUTANTS[name].planted():
        assert function.__code__ is not whole
    assert function.__code__ is whole


def test_each_mutant_is_caught_or_explained() -> None:
    assert {*CAUGHT, *EQUIVALENT} == set(MUTANTS)


@pytest.mark.parametrize("name", [name for name in CAUGHT if CAUGHT[name].aim or CAUGHT[name].changes])
def test_a_world_made_for_a_mutant_has_no_problem_without_it(name: str) -> None:
    look = CAUGHT[name]
    assert not simulate(look.scenario(look.schedules - 1)).problems
