"""The page of algorithms is what the code makes, and knows every name and only fields that exist."""

from __future__ import annotations

from pathlib import Path

from areal.spec.algorithm import ExpertFields, PolicyGradient
from areal.spec.block import fields_of
from areal.spec.resolved_algorithm import NAMES
from areal.spec.training import Optimizer

from tools.pages.algorithms import _MEANING, _NAMES_ELSEWHERE, render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "algorithms.md"


def test_the_page_is_made_from_the_code():
    assert PAGE.read_text(encoding="utf-8") == render(), "run `make docs`"


def test_every_name_is_told():
    assert set(_MEANING) == set(NAMES) == set(fields_of(PolicyGradient)["name"].annotation.__args__)


def test_fields_of_the_mapping_exist():
    fields = {**fields_of(PolicyGradient), **fields_of(ExpertFields), **fields_of(Optimizer)}
    for ours, *_ in _NAMES_ELSEWHERE:
        first = ours.split(",")[0].split()[0].rstrip(":").split(".")[0]
        assert first in fields, ours
