"""TACO: APPS's `input_output`, with limits written out ("2.0 seconds", "256.0 megabytes")."""

from __future__ import annotations

from areal_judge.judge.formats import apps
from areal_judge.judge.formats.fields import Row
from areal_judge.judge.values import Suite


def claims(row: Row) -> bool:
    return "input_output" in row and apps.is_taco(row)


def suite(row: Row) -> Suite:
    return apps.suite(row)
