"""The documentation site: builds without a warning, holds every page, and asks no other host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=[\"']?([^\"'> ]+)|<link[^>]*rel=[\"']?(?:stylesheet|icon)[^>]*>")

pytestmark = pytest.mark.component


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(out), "-f", str(ROOT / "mkdocs.yml")]
    built = subprocess.run(
        command, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False, timeout=120
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return out


def test_every_page_of_the_docs_is_a_page_of_the_site(site):
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 20
    assert [str(page) for page in pages if not (site / page).is_file()] == []


def test_a_page_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        for loaded in LOADED.finditer(page.read_text()):
            assert "//" not in loaded[0], f"{page.name}: {loaded[0]}"


def test_a_page_is_two_clicks_from_the_first(site):
    first = (site / "index.html").read_text()
    for page in ("flat-reward.html", "tutorials/own-task.html", "migration.html"):
        assert f'href="{page}"' in first


def test_a_link_that_leaves_the_pages_shows_its_path(site):
    text = (site / "architecture.html").read_text()
    assert "services/areal/plan/role_specs.py" in text
    assert 'href="../services' not in text
