"""What is compared with other projects is as much as the pages say, and every difference has its row."""

from __future__ import annotations

from pathlib import Path

from test_peers import ADAPTERS, BATCHES, DIFFERENCES

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_counts_of_the_page_are_those_of_the_lists():
    page = (DOCS / "testing.md").read_text(encoding="utf-8").replace("\n", " ")
    functions = {(name.partition(" ")[0], name.split(",")[0].split(" ")[1]) for name in ADAPTERS}
    assert len(functions) >= 60
    assert BATCHES == 60
    assert set(DIFFERENCES) <= set(ADAPTERS)
    assert f"compares {len(functions)} of their functions with ours in {len(ADAPTERS)} ways" in page
    assert f"{len(DIFFERENCES)} of these differ" in page
