"""The page for everybody: axe finds no fault in either colour scheme, and the keyboard alone leads to a token."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from areal_view.pages.site import STATIC
from pages.test_view_jobs import job_pages
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.component

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
WAIT_MS = 60_000  # a busy machine
BEYOND = """[...document.querySelectorAll('main *, header *')].filter((one) => one.getBoundingClientRect().right > 391
  && !one.closest('.wide')).map((one) => one.outerHTML.slice(0, 90)).slice(0, 5)"""
PAGES = (
    "/", "/r/digits", "/r/digits/steps/3", "/r/digits/groups/10", "/r/digits/samples/10.1", "/r/digits/search",
    "/r/digits/evals", "/r/digits/fleet", "/r/digits/config", "/compare?run=digits&smooth=0.5&log=1",
    "/?name=none",
)  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault_on_any_page(browser: Browser, address: str, scheme: str):
    tab = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
    tab.set_default_timeout(WAIT_MS)
    tab.goto(address)
    origin = address.partition("?")[0].split("/r/")[0].rstrip("/")
    found = {}
    for path in PAGES:
        tab.goto(origin + path, wait_until="load")
        tab.evaluate(AXE)
        told = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found[path] = [(one["id"], one["nodes"][0]["html"]) for one in told["violations"]]
        assert told["passes"]
    assert found == {path: [] for path in PAGES}
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault_on_the_pages_of_jobs(browser: Browser, scheme: str):
    tab = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
    found = {}
    for name, text in job_pages().items():
        tab.set_content(text)
        tab.add_style_tag(path=STATIC / "page.css")
        tab.evaluate(AXE)
        told = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found[name] = [(one["id"], one["nodes"][0]["html"]) for one in told["violations"]]
        assert told["passes"]
    assert found == {name: [] for name in found}
    tab.close()


def test_no_page_scrolls_sideways_on_a_phone(browser: Browser, address: str):
    tab = browser.new_page(viewport={"width": 390, "height": 800})
    tab.set_default_timeout(WAIT_MS)
    tab.goto(address)
    expect(tab.locator("figure canvas").first).to_be_visible(timeout=WAIT_MS)
    origin = address.partition("?")[0].split("/r/")[0].rstrip("/")
    too_wide = {}
    for path in PAGES:
        tab.goto(origin + path, wait_until="networkidle")
        tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        wide = tab.evaluate("document.documentElement.scrollWidth")
        if wide > 390:
            too_wide[path] = (wide, tab.evaluate(BEYOND))
    assert too_wide == {}
    tab.goto("about:blank")  # away from the page's policy, which knows no inline style
    for text in job_pages().values():
        tab.set_content(text)
        tab.add_style_tag(path=STATIC / "page.css")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.close()


def test_the_arrow_keys_read_a_chart_and_enter_opens_its_step(browser: Browser, address: str):
    tab = browser.new_page(reduced_motion="reduce")
    tab.set_default_timeout(WAIT_MS)
    tab.goto(address)
    chart = tab.get_by_role("slider", name="reward by step")
    chart.focus()
    expect(chart).to_have_attribute("aria-valuetext", "step 3: reward 0.3")
    for key, told in (
        ("ArrowLeft", "step 2: reward 0.2, held-out 0.5"),
        ("Home", "step 0: reward 0"),
        ("PageUp", "step 1"),
    ):
        tab.keyboard.press(key)
        expect(chart).to_have_attribute("aria-valuetext", re.compile(f"^{told}"), timeout=WAIT_MS)
    expect(tab.locator("figure").first.locator(".lines")).to_contain_text("reward 0.1")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/steps/1")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "skip to the content"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"
    tab.close()


def test_the_keyboard_alone_leads_from_the_runs_to_a_token(browser: Browser, address: str):
    tab = browser.new_page(reduced_motion="reduce")
    tab.set_default_timeout(WAIT_MS)
    tab.goto(address)
    tab.goto(address.partition("?")[0].split("/r/")[0])
    for name, path in (("digits", "/r/digits"), ("3", "/steps/3"), ("10", "/groups/10"), ("10.1", "/samples/10.1")):
        follow(tab, name)
        tab.wait_for_url(f"**{path}")
    reach(tab, "button", "go to the worst token")
    tab.keyboard.press("Enter")
    figures = tab.locator(".figures")
    expect(figures).to_contain_text("token", timeout=WAIT_MS)
    before = figures.inner_text()
    tab.keyboard.press("ArrowLeft")
    expect(figures).not_to_have_text(before, timeout=WAIT_MS)
    assert tab.url.endswith("/samples/10.1")
    tab.close()


def follow(tab: Page, name: str) -> None:
    """Tab to the link of this name, and open it."""
    reach(tab, "a", name)
    tab.keyboard.press("Enter")


def reach(tab: Page, kind: str, name: str) -> None:
    """Press Tab until this has the focus, and is seen to have it."""
    expect(tab.locator(kind).filter(has_text=name).first).to_be_visible(timeout=WAIT_MS)
    for _ in range(120):
        tab.keyboard.press("Tab")
        tag, text, outline = tab.evaluate(
            "(() => { const on = document.activeElement; "
            "return [on.tagName, on.textContent.trim(), getComputedStyle(on).outlineStyle]; })()"
        )
        if (tag.lower(), text) == (kind, name):
            assert outline != "none", "the focus can be seen"
            return
    raise AssertionError(f"Tab never reaches {kind} {name!r}")
