"""docs/python.md: what the sources' signatures and docstrings say now, of every name that people import."""

from __future__ import annotations

import re
from pathlib import Path

import areal
import areal.workflow
import pytest

from tools.pages.python_api import render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_the_page_on_python_is_fresh():
    assert PAGE.read_text() == render(), "run `make docs`"


def test_every_name_that_is_exported_has_a_section_with_words():
    text = render()
    names = [f"areal.{name}" for name in dir(areal) if name != "__version__"]
    names += [f"areal.workflow.{name}" for name in areal.workflow.__all__]
    assert len(names) > 15
    for name in names:
        section = re.search(rf"^### {re.escape(name)}\n(.*?)(?=^###? |\Z)", text, re.M | re.S)
        assert section, name
        assert re.search(r"^[A-Z`].+\.", section[1], re.M), f"{name} has no docstring"


def test_arguments_errors_and_fields_are_told():
    text = render()
    assert "\n- `fresh`: start anew; an earlier run there is moved aside\n" in text
    assert "- Raises `ConfigError`: " in text
    assert "| `loss_mask: NDArray[np.bool_]` | [T] |" in text
    assert "| `await aclose() -> None` |" in text


def test_a_new_name_comes_by_itself(monkeypatch):
    monkeypatch.setitem(areal._LAZY, "again", ("areal_view.library", "open_run"))
    assert "areal.again(directory: str | os.PathLike[str], *, namespace: str | None=None) -> Run" in render()


@pytest.mark.parametrize("words", ["a<b", "`<c>` and <d>"])
def test_angle_brackets_outside_of_code_are_text(words):
    from tools.pages.python_api import _plain

    assert re.sub(r"`[^`]*`", "", _plain(words)).count("<") == 0
    assert ("`<c>`" in _plain(words)) == ("`<c>`" in words)
