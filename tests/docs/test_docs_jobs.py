"""Job files that the documentation shows are valid."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from areal.spec.check import Severity, check
from areal.spec.load import load_job

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^(?P<indent> *)```yaml\n(?P<text>.*?)^(?P=indent)```", re.M | re.S)


def shown_jobs() -> list[object]:
    """Whole job files of all pages: YAML blocks that begin with apiVersion."""
    found: list[object] = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for number, block in enumerate(BLOCK.finditer(page.read_text())):
            text = textwrap.dedent(block["text"])
            if text.startswith("apiVersion: areal.dev/") and "kind: RLJob\n" in text:
                found.append(pytest.param(text, id=f"{page.stem}-{number}"))
    return found


def test_the_pages_show_jobs():
    assert len(shown_jobs()) >= 4


@pytest.mark.parametrize("text", shown_jobs())
def test_a_job_on_a_page_is_valid(text, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    assert [finding for finding in check(load_job(path)) if finding.severity is Severity.ERROR] == []
