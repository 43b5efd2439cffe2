"""What is generated from values.yaml, and the grammar of its comments."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from chart.chart_rendering import CHART, ROOT

from deploy.chart import pages
from deploy.chart.schema import schema
from deploy.chart.values import CommentError, Value, read

VALUES = read(CHART / "values.yaml")


def values_of(tmp_path: Path, text: str) -> list[Value]:
    """What the generator reads out of a values file."""
    path = tmp_path / "values.yaml"
    path.write_text(text, encoding="utf-8")
    return read(path)


def test_the_committed_files_are_what_their_sources_say() -> None:
    checked = subprocess.run([str(ROOT / "tools" / "chart"), "--check"], capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stderr


def test_the_schema_is_closed_at_every_level_that_is_ours() -> None:
    made = json.loads((CHART / "values.schema.json").read_text())
    kubernetes_own = {"object", "objects"}
    open_maps: list[tuple[str, ...]] = []
    todo = [((name,), part) for name, part in made["definitions"].items() if name not in kubernetes_own]
    todo.append(((), {key: value for key, value in made.items() if key != "definitions"}))
    while todo:
        path, part = todo.pop()
        if not isinstance(part, dict):
            continue
        if "properties" in part and isinstance(part["properties"], dict) and part.get("type") == "object":
            assert part["additionalProperties"] is False, path
        elif part.get("type") == "object" and "additionalProperties" not in part:
            open_maps.append(path)
        todo += [((*path, key), value) for key, value in part.items()]
    assert [path[-1] for path in open_maps] == ["valueFrom"]


def test_every_value_of_the_chart_is_on_its_page_and_in_the_schema() -> None:
    page = (ROOT / "docs" / "values.md").read_text()
    made = schema(VALUES, [])
    for value in (found for top in VALUES for found in top.walk()):
        if not value.children:
            assert f"| `{value.name}` |" in page, value.name
    assert made["properties"].keys() == {value.path[-1] for value in VALUES}


def test_templates_read_only_values_that_exist() -> None:
    known = {".".join(found.path) for top in VALUES for found in top.walk()}
    for path in (CHART / "templates").iterdir():
        for name in re.findall(r"\.Values\.([A-Za-z0-9.]+)", path.read_text()):
            assert name.rstrip(".") in known, f"{path.name}: {name}"


def test_every_value_is_read_by_a_template() -> None:
    text = "\n".join(path.read_text() for path in (CHART / "templates").iterdir())
    for value in (found for top in VALUES for found in top.walk()):
        assert (
            f".{value.path[-1]}" in text or f'"{value.path[-1]}"' in text or value.path[-2] in ("definitions", "images")
        )


def test_a_value_without_a_comment_is_an_error_that_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(CommentError, match=r"line 3: b has no comment"):
        values_of(tmp_path, "# One.\na: 1\nb: 2\n")


def test_a_default_that_says_nothing_needs_a_type(tmp_path: Path) -> None:
    with pytest.raises(CommentError, match="its default says nothing about its type"):
        values_of(tmp_path, "# Some.\na: []\n")


def test_a_misspelt_word_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CommentError, match="@shema is none of"):
        values_of(tmp_path, "# One.\n# @shema {minimum: 1}\na: 1\n")


def test_a_shape_that_is_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CommentError, match="there is no shape imge"):
        schema(values_of(tmp_path, "# One.\n# @type imge\na: {}\n"), [])


def test_types_come_from_defaults_and_keywords_from_comments(tmp_path: Path) -> None:
    text = "# @section Things\n\n# How many\n# of them.\n# @schema {minimum: 1}\na: 1\n# On.\nb: true\n# Text.\nc: ''\n"
    values = values_of(tmp_path, text)
    assert [value.section for value in values] == ["Things"] * 3
    made = schema(values, [])["properties"]
    assert made["a"] == {"description": "How many of them.", "type": "integer", "minimum": 1}
    assert made["b"]["type"] == "boolean"
    assert made["c"]["type"] == "string"


def test_a_defined_shape_is_used_by_reference_and_its_keys_are_optional(tmp_path: Path) -> None:
    text = "# All.\n# @map thing\nm:\n  # One.\n  # @define thing\n  one:\n    # Size.\n    size: 1\n"
    made = schema(values_of(tmp_path, text), [])
    assert made["properties"]["m"]["additionalProperties"] == {"$ref": "#/definitions/thing"}
    assert made["definitions"]["thing"] == {
        "type": "object",
        "additionalProperties": False,
        "properties": {"size": {"description": "Size.", "type": "integer"}},
    }


def test_a_cell_with_a_bar_does_not_break_the_table(tmp_path: Path) -> None:
    values = values_of(tmp_path, "# This | that.\na: 1\n")
    assert "| `a` | `1` | This \\| that. |" in pages.reference(values)


def test_the_values_of_the_matrix_are_the_ones_of_the_schema() -> None:
    for path in sorted((CHART / "ci").glob("*-values.yaml")):
        loaded = yaml.safe_load(path.read_text()) or {}
        assert loaded.keys() <= {value.path[-1] for value in VALUES}, path.name
