"""The matrix of deaths: every place names the same cause of an end or a stall, by its identifier."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from support.death_matrix import FEW, Outcome, cells, table, try_cell
from support.dummy_run import Runs

SHARE = 0.95  # of all places of all cells


@pytest.mark.component
@pytest.mark.timeout(3600)
def test_the_same_cause_is_named_in_every_place(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    everything = pytestconfig.getoption("--all-stalls")
    chosen = [cell for cell in cells() if everything or cell.name in FEW]
    outcomes: list[Outcome] = []
    with closing(Runs(tmp_path)) as runs:
        for number, cell in enumerate(chosen):
            outcomes.append(try_cell(runs, cell, tmp_path / str(number)))
            print(f"\n{table(outcomes[-1:])}", end="", flush=True)
    right, places = sum(one.right for one in outcomes), sum(len(one.said) for one in outcomes)
    print(f"\n\n{table(outcomes)}\n  {right} of {places} places name the cause")
    assert len(chosen) >= len(FEW)
    assert right >= SHARE * places, table(outcomes)
    assert [one.cell.name for one in outcomes if one.wrong_end] == []
