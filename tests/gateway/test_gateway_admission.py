"""Fields of a chat request: what is documented is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.gateway.admission import AdmissionRules, Treatment, admit, fields_of, header_of, overridden
from areal.gateway.faults import CallRefusal
from hypothesis import given
from hypothesis import strategies as st

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "agents.md").read_text()
FIELDS = fields_of("chat")
TABLE = [line for line in PAGE.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_documented_as_it_is_treated(name):
    (line,) = [line for line in TABLE if f"`{name}`" in line]
    assert f"| {FIELDS[name].treatment}: {FIELDS[name].why} |" in line


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.treatment is Treatment.REFUSED])
def test_a_refused_field_passes_only_where_it_says_nothing(name):
    for harmless in FIELDS[name].harmless:
        assert admit({name: harmless}, "chat") == []
    with pytest.raises(CallRefusal, match=name):
        admit({name: "anything"}, "chat", AdmissionRules(ignores=True))


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.treatment is Treatment.SHAPING])
def test_what_changes_the_distribution_is_refused_ignored_or_done(name):
    for harmless in FIELDS[name].harmless:
        assert admit({name: harmless}, "chat") == []
    with pytest.raises(CallRefusal) as caught:
        admit({name: "anything"}, "chat")
    assert caught.value.field == name
    assert "rollout.gateway.unsupported" in caught.value.message
    assert admit({name: "anything"}, "chat", AdmissionRules(ignores=True)) == [name]
    assert admit({name: "anything"}, "chat", AdmissionRules(honours=frozenset({name}))) == []


@given(st.dictionaries(st.text(max_size=9), st.integers() | st.none(), max_size=5))
def test_a_field_that_is_not_known_is_ignored_and_told(body):
    named = {f"x-{name}": value for name, value in body.items()}
    assert admit(named, "chat") == [name for name, value in named.items() if value is not None]


@given(st.lists(st.text(max_size=200), max_size=60))
def test_the_header_is_a_kilobyte_of_ascii_that_breaks_no_line(names):
    told = header_of(names)
    assert len(told) <= 1024
    assert told.isascii()
    assert told.isprintable()


def test_the_header_counts_what_it_has_no_room_for():
    told = header_of([f"field_{number:03}" for number in range(200)])
    shown = told.count("field_")
    assert told.endswith(f", +{200 - shown}")


def test_an_override_is_a_value_that_differs_from_the_jobs():
    assert overridden({"temperature": 1, "top_p": 0.5}, {"temperature": 1.0, "top_p": 1.0, "top_k": 0}) == ("top_p",)
