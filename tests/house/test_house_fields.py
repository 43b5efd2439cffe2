"""The job file stays small, and each of its fields is named by a page that somebody wrote, or by an example."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from areal.spec.algorithm import PolicyGradient
from areal.spec.block import SpecBlock, blocks_in, fields_of, item_block
from areal.spec.job import RLJob

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {"rljob.md", "algorithms.md", "dataflow.md", "cli.md", "conditions.md", "values.md", "grafana.md"}
MOST_OF_ALGORITHM = 18
MOST_LEAVES = 340


def leaves(block: type[SpecBlock], above: str = "") -> Iterator[str]:
    """Dotted paths of all fields that hold a value. What all roles of pods have is there once, as in the schema."""
    seen: set[str] = set()
    for name, field in fields_of(block).items():
        item = item_block(field.annotation)
        inner = [item] if item else blocks_in(field.annotation)
        path = f"{above}.{name}" if above else name
        if block.one_schema:
            path = f"{above}.*"
        below = [leaf for each in inner for leaf in leaves(each, path)] if inner else [path]
        yield from (leaf for leaf in below if leaf not in seen)
        seen |= set(below)


def test_every_field_is_named_by_a_page_that_somebody_wrote_or_an_example() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name not in GENERATED]
    files = [*pages, *(ROOT / "examples").glob("*.yaml"), ROOT / "README.md"]
    words = set(re.findall(r"[A-Za-z0-9]+", "\n".join(file.read_text() for file in files)))
    assert [path for path in leaves(RLJob) if path.rpartition(".")[2] not in words] == []


def test_an_algorithm_shows_few_fields_and_the_job_has_no_more_than_it_needs() -> None:
    assert len(fields_of(PolicyGradient)) <= MOST_OF_ALGORITHM
    assert len(set(leaves(RLJob))) <= MOST_LEAVES
