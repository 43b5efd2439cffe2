"""The table of what each family can do is what a tiny model of it was seen to do."""

from __future__ import annotations

import json

import pytest
from areal.errors import DataError
from areal.spec.model_families import COMPARED, EXPERTS, HYBRIDS, VISION, family_cells, refuse_columns
from support.family_cells import COLUMNS
from support.forked_ranks import program

pytestmark = [pytest.mark.component, pytest.mark.timeout(300)]

FIRST = ("lfm2", "qwen3_moe")  # in each landing


def test_every_family_has_each_column_and_none_is_wrong():
    cells = family_cells()
    assert cells.keys() == {*COMPARED, *EXPERTS, *HYBRIDS, *VISION}
    for family, told in cells.items():
        assert told.keys() == COLUMNS.keys(), family
        assert all(cell == "yes" or cell.startswith("refused: ") for cell in told.values()), family
        assert told["alone"] == "yes"


@pytest.mark.parametrize(
    "family",
    [
        name if name in FIRST else pytest.param(name, marks=pytest.mark.nightly)
        for name in sorted((*COMPARED, *EXPERTS, *HYBRIDS, *VISION))
    ],
)
def test_a_family_does_what_its_row_says(tmp_path, family):
    (said,) = program("family_cells", tmp_path, family)
    assert json.loads(said) == {"family": family, "cells": family_cells()[family]}


@pytest.mark.parametrize(("family", "column"), [("qwen3_moe", "tensor ranks"), ("lfm2", "context ranks")])
def test_a_refusal_of_the_table_is_that_of_the_check(family, column):
    refuse_columns({"model_type": "qwen3"}, COLUMNS, "it")
    refuse_columns({"model_type": family}, ["resume", "delta"], "it")
    with pytest.raises(DataError, match=f"it: {column} refused: "):
        refuse_columns({"model_type": family}, [column], "it")
    with pytest.raises(DataError, match=r"segments refused: .* told of nothing but a mask") as told:
        refuse_columns({"model_type": "stablelm"}, ["segments"], "it")
    assert "trainer.attention: dense" in told.value.fix
    with pytest.raises(DataError, match=f"it: {column} refused: "):
        refuse_columns({"text_config": {"model_type": family}, "model_type": "wrapper"}, ["resume", column], "it")
