"""docs/cli.md: what the parser says now."""

from __future__ import annotations

from pathlib import Path

from tools.pages.command_line import render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def test_the_page_on_the_command_line_is_fresh() -> None:
    assert PAGE.read_text() == render(), "run `make docs`"


def test_each_command_has_its_arguments_and_examples() -> None:
    text = render().split("## areal why\n")[1].split("\n## ")[0]
    assert "areal why RUN [OPTIONS]" in text
    assert "| `--namespace, -n TEXT` |" in text
    assert "areal why runs/digits --slow" in text
    assert "| `--as jsonl\\|parquet\\|atif` |" in render()


def test_options_that_another_parser_reads_are_told():
    assert "| `--dtype float32\\|bfloat16` |" in render().split("## areal serve\n")[1].split("\n## ")[0]
    assert "| `--seed VALUE` | of the weights |" in render().split("## areal init-model\n")[1].split("\n## ")[0]
    assert "--help`" not in render().replace("the same with `--help`", "")
