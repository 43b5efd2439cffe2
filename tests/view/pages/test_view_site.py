"""`report.html`: the pages of a run in one file, the same figures, nothing from outside, drawn in a real browser."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from areal_view.pages import site
from support.recorded_run import RecordedRun

SUMMARY = {"status": "Complete", "steps": 4, "heldOut": {"first": 0.25, "last": 0.5}, "restarts": {"worker-0": 0}}


class Resources(HTMLParser):
    """What a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "hx-get", "action")]
        assert tag not in ("link", "img", "iframe")


def main_of(page: str) -> str:
    """What a reader sees, without style and scripts."""
    return page[page.index("<main>") : page.index("</main>")]


def test_a_report_fetches_nothing_and_has_what_the_pages_have(recorded: RecordedRun):
    target = site.write(recorded.root, SUMMARY)
    assert target == recorded.root / "report.html"
    page = target.read_text()
    resources = Resources()
    resources.feed(page)
    assert resources.fetched == []
    assert "default-src 'none'" in page
    main = main_of(page)
    for word in ("Complete", "Answers of the last step", "Evaluations on held-out rows", "&lt;hard&gt;", "every second",
                 "models/\\u003cb\\u003edigits", "heldOut.first", "seconds of a step, by phase"):  # fmt: skip
        assert word in main, word
    assert "restarts.worker-0" not in main
    drawn = {name: json.loads(data) for name, data in re.findall(
        r'data-chart="([a-z]+)".*?<script type="application/json">(.*?)</script>', main, re.S
    )}  # fmt: skip
    assert "mismatch" in drawn
    assert "length" not in drawn, "nothing of it was measured"
    assert drawn["reward"]["lines"][0]["values"] == [0.0, 0.1, 0.2, 0.3]
    answers = re.findall(r'<div class="part sampled text">([a-f]+)</div>', main)
    assert len(answers) == 6
    texts = {made.texts[0].text.decode() for made in recorded.samples.values()}
    assert all(any(text.endswith(answer) for text in texts) for answer in answers)


def test_the_report_is_drawn_as_it_was(recorded: RecordedRun):
    """UPDATE_GOLDEN=1 writes it again; look at it in a browser before you commit it."""
    main = main_of(site.page(recorded.root, SUMMARY))
    golden = Path(__file__).with_name("golden_report.html")
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(main)
    assert main == golden.read_text()


def test_the_heading_is_the_job_s_name_and_not_that_of_its_directory(recorded: RecordedRun):
    resolved = recorded.root / "resolved.json"
    told = json.loads(resolved.read_text())
    told["job"]["metadata"] = {"name": "math-<8b>"}
    resolved.write_text(json.dumps(told))
    page = site.page(recorded.root, SUMMARY)
    assert re.search(r"<h1>math-&lt;8b&gt;\W", main_of(page))
    assert "<title>math-&lt;8b&gt; · areal</title>" in page


def test_recorded_text_can_end_no_script(recorded: RecordedRun):
    metrics = recorded.root / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines[-1]["figures"] = {"</script><!--<script>alert(1)</script>": 1.0}
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    main = main_of(site.page(recorded.root, {"status": "<script>alert(2)</script>"}))
    assert "\\u003c/script>\\u003c!--" in main
    assert "&lt;script&gt;alert(2)" in main
    assert "<script>" not in main
    assert "<!--" not in main


@pytest.mark.parametrize("steps", [0, 1])
def test_a_report_of_almost_nothing_is_still_a_page(tmp_path: Path, steps: int):
    row = {
        "step": 0, "reward_mean": 0.5, "groups": 2, "tokens": 10, "staleness_mean": None, "loss": None,
        "grad_norm": None, "zero_variance_groups": 0, "wall_s": 1.0,
    }  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text((json.dumps(row) + "\n") * steps)
    main = main_of(site.page(tmp_path, {"status": "Failed"}))
    assert "Failed" in main
    assert main.count("<figure") == (9 if steps == 0 else 1)
