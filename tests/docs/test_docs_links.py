"""Links of the pages: to headings as a code host and the site name them, and to the glossary at a word's first use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docker/README.md")]
MADE = ("algorithms", "alerts", "cli", "conditions", "dataflow", "grafana", "python", "rljob", "values")  # of code
WORDS = (
    "canary",
    "cell",
    "cursor",
    "epoch",
    "fence",
    "floor",
    "frontier",
    "gate",
    "ledger",
    "lease",
    "tombstone",
    "zygote",
)
OTHER_MEANINGS = {  # of a word on a page, which isn't the glossary's
    ("migration", "epoch"): "passes over the rows, as other projects call them",
    ("rl-training", "gate"): "of SAPO's formula",
    ("security", "lease"): "Kubernetes' object",
}
_site = slugify(case="lower")


def headings(page: Path) -> list[str]:
    text = re.sub(r"(?ms)^ *(`{3,}).*?^ *\1 *$", "", page.read_text())
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in re.findall(r"(?m)^#+ (.*)$", text))
    return [re.sub(r"[`*]", "", heading).strip() for heading in plain]


def host_anchor(heading: str) -> str:
    """Letters, digits, `_` and `-` in lower case, each space a `-`."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def site_anchor(heading: str) -> str:
    return str(_site(heading, "-"))


@pytest.mark.parametrize("page", [*OTHERS, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_to_a_heading_finds_it_on_a_code_host_and_on_the_site(page):
    for path, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert anchor in map(host_anchor, headings(target)), f"{path}#{anchor}"
        assert anchor in map(site_anchor, headings(target)), f"{path}#{anchor}"


def test_two_spaces_of_a_dropped_sign_stay_two_hyphens():
    assert (
        host_anchor("Weights & Biases, MLflow") == site_anchor("Weights & Biases, MLflow") == "weights--biases-mlflow"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_a_word_of_the_design_leads_to_the_glossary_where_a_page_first_uses_it(page):
    if page.stem not in (*MADE, "architecture"):
        assert [word for word in WORDS if unlinked(page, word)] == []


def unlinked(page: Path, word: str) -> bool:
    """Whether the prose has the word before any link to the glossary by it. Code, headings and pictures aside."""
    if (page.stem, word) in OTHER_MEANINGS:
        return False
    text = re.sub(r"(?ms)^ *(`{3,}).*?^ *\1 *$", "", page.read_text())
    text = re.sub(r"(?m)^#.*$|<!--.*?-->|!\[[^\]]*\]", "", text)
    text = re.sub(r"`[^`\n]*`", "", text)
    first = re.search(rf"(?i)\b{word}s?\b", re.sub(r"\]\([^)]*\)", lambda link: "]" + " " * (len(link[0]) - 1), text))
    if first is None:
        return False
    links = re.finditer(r"\[([^\]]*)\]\((?:\.\./)?architecture\.md#words\)", text)
    return not any(link.start(1) <= first.start() < link.end(1) for link in links)
