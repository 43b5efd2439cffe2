"""The page in a real browser: from a run to one token's figures, live, and without a word to any other host."""

from __future__ import annotations

import json
import re

import pytest
from areal_view.pages import site
from playwright.sync_api import Browser, Page, expect
from support.recorded_run import RecordedRun

pytestmark = pytest.mark.component

WAIT_MS = 60_000  # a busy machine
expect.set_options(timeout=WAIT_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_from_a_run_to_a_token(browser: Browser, address: str, recorded: RecordedRun, scheme: str):
    context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
    page, wrong = context.new_page(), []
    page.set_default_timeout(WAIT_MS)
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    origin = re.match(r"http://[^/]+/", address)
    assert origin is not None
    page.on("request", lambda asked: None if asked.url.startswith(origin[0]) else wrong.append(asked.url))
    page.goto(address)
    expect(page.locator("figure canvas")).to_have_count(8)
    assert "key=" not in page.url
    _grow(page, recorded)
    page.get_by_role("link", name="3", exact=True).first.click()
    page.get_by_role("link", name="10", exact=True).click()
    page.get_by_role("link", name="10.1", exact=True).click()
    expect(page.get_by_text("trained as recorded")).to_be_visible()
    told, made = recorded.tokens[10, 1], recorded.samples[10, 1]
    place = int(told["flags"].nonzero()[0][0])
    page.locator(f'[data-at="{place}"]').hover()
    figures = page.locator(".figures")
    expect(figures).to_contain_text(f"token {place}")
    shown = re.search(r"trained log-prob (-?[\d.e-]+)", figures.inner_text())
    assert shown is not None
    assert float(shown[1]) == pytest.approx(float(told["logprobs"][place]), rel=1e-3)
    page.get_by_role("button", name="entropy").click()
    page.get_by_role("button", name="go to the worst token").click()
    worst = int(told["entropy"].argmax())
    expect(figures).to_contain_text(f"token {worst}")
    page.keyboard.press("ArrowLeft")
    expect(figures).to_contain_text(f"token {worst - 1}")
    assert page.locator(".strip").inner_text() == made.texts[0].text.decode()
    page.get_by_role("link", name="fleet", exact=True).click()
    expect(page.locator(".lanes svg")).to_have_count(4)
    expect(page.get_by_role("cell", name="waits: generation")).to_be_visible()
    page.goto(f"{origin[0]}compare?run=digits")
    expect(page.locator("figure canvas")).to_have_count(9)
    expect(page.get_by_text("The jobs are equal.")).to_be_visible()
    assert wrong == []
    context.close()


def _grow(page: Page, recorded: RecordedRun) -> None:
    """A step that is trained while the page is open appears on it by itself."""
    row = json.loads((recorded.root / "metrics.jsonl").read_text().splitlines()[-1])
    recorded.train(4)
    with (recorded.root / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**row, "step": 4}) + "\n")
    expect(page.get_by_role("link", name="4", exact=True)).to_be_visible()


def test_a_report_is_drawn_from_a_file_alone(browser: Browser, recorded: RecordedRun):
    target = site.write(recorded.root, {"status": "Complete"})
    tab = browser.new_page()
    asked, wrong = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    tab.goto(target.as_uri())
    figures = tab.locator("figure[data-chart]").count()
    expect(tab.locator("figure canvas")).to_have_count(figures, timeout=WAIT_MS)
    assert figures >= 5
    assert (asked, wrong) == ([target.as_uri()], [])
    tab.close()
