"""Who may look: only who has the key, only by loopback's names, only to read."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import areal_view.pages
import pytest
from starlette.testclient import TestClient

STATIC = Path(areal_view.pages.__file__).parent / "static"
VENDORED = {
    "htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",  # 4.0.1, 0BSD
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",  # 1.6.32, MIT
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


@pytest.fixture
def stranger(page: TestClient) -> TestClient:
    page.cookies.clear()
    return page


def test_without_the_key_nothing_is_shown(stranger: TestClient):
    for path in ("/", "/r/digits", "/r/digits/curves?name=reward", "/static/page.css", "/?key=another"):
        assert stranger.get(path).status_code == 403
    stranger.cookies.set("areal_view_4321", "another")
    assert stranger.get("/").status_code == 403


def test_the_key_becomes_a_cookie_and_leaves_the_address(stranger: TestClient):
    answer = stranger.get("/r/digits?key=the-key&format=json", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/r/digits?format=json")
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=strict" in answer.headers["set-cookie"]
    assert stranger.get("/r/digits").status_code == 200


def test_another_name_for_this_machine_is_refused(page: TestClient):
    assert page.get("/", headers={"host": "evil.example:4321"}).status_code == 421
    assert page.get("/", headers={"host": "127.0.0.1"}).status_code == 421


def test_nothing_can_be_written(page: TestClient):
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert page.request(method, "/r/digits").status_code == 405


def test_pages_load_nothing_from_elsewhere_and_run_no_script_of_their_text(page: TestClient):
    for path in ("/", "/r/digits", "/r/digits/steps/1", "/r/digits/groups/1", "/r/digits/samples/1.0"):
        answer = page.get(path)
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert not re.search(r"https?://|style=|\son\w+=|<script>", answer.text)


def test_templates_escape_everything():
    for template in (STATIC.parent / "templates").glob("*.html"):
        assert not re.search(r"\|\s*safe|autoescape|hx-on", template.read_text()), template.name


def test_vendored_files_are_what_they_claim_to_be():
    assert {name: hashlib.sha256((STATIC / name).read_bytes()).hexdigest() for name in VENDORED} == VENDORED
    mine = {"page.css", "charts.js", "tokens.js", "htmx.LICENSE", "uPlot.LICENSE"}
    assert {path.name for path in STATIC.iterdir()} == VENDORED.keys() | mine
