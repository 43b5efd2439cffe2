"""What the README shows is what the repository holds."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize(("page", "file"), [("README.md", "digits.py"), ("docs/workflows.md", "environment.py")])
def test_a_page_shows_its_example_whole(page, file):
    shown = re.search(rf"<!-- examples/{file} -->\n```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert shown
    assert shown[1] == (ROOT / "examples" / file).read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_the_docs_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_what_to_do_when_the_reward_stays_flat_is_within_two_clicks_of_the_readme():
    page = re.search(r"\[the reward stays flat\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert page
    text = (ROOT / page[1]).read_text()
    assert len(re.findall(r"^## \d+\. .+\?$", text, re.M)) >= 5
    assert len(re.findall(r"^\|.*\| (?:do|then|else) \|$", text, re.M)) >= 4, "each question says what to do"
    second = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert {"../examples/custom_reward.py", "supervised.md"} <= set(second)


def test_every_make_target_the_readme_names_exists():
    named = set(re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(), re.M))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert named
    assert named <= targets


def test_every_room_is_in_the_table_of_rooms():
    page = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {path.parent.name for path in (ROOT / "services").glob("*/*/__init__.py")} - {"v1"}
    table = page[page.index("## Rooms") :]
    named = set(re.findall(r"`(?:services/areal(?:_[a-z]+)?/)?([a-z_]+)`", table))
    assert len(rooms) > 25
    assert rooms - named == set()
