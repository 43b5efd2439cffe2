"""Fields of a chat request: what is documented is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.gateway.admission import FIELDS, Treatment, admit, overridden
from areal.gateway.faults import CallRefusal

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "agents.md").read_text()
TABLE = [line for line in PAGE.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_documented_as_it_is_treated(name):
    (line,) = [line for line in TABLE if f"`{name}`" in line]
    assert f"| {FIELDS[name].treatment}: {FIELDS[name].why} |" in line


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.treatment is Treatment.REFUSED])
def test_a_refused_field_passes_only_where_it_says_nothing(name):
    for harmless in FIELDS[name].harmless:
        admit({name: harmless})
    with pytest.raises(CallRefusal, match=name):
        admit({name: "anything"})


def test_a_field_that_is_not_known_is_refused():
    with pytest.raises(CallRefusal) as caught:
        admit({"beam_width": 2})
    assert caught.value.field == "beam_width"


def test_an_override_is_a_value_that_differs_from_the_jobs():
    assert overridden({"temperature": 1, "top_p": 0.5}, {"temperature": 1.0, "top_p": 1.0, "top_k": 0}) == ("top_p",)
