"""The page's login on a cluster: who the API server lets read the job gets in for an hour, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from areal_view.pages.app import app_of
from areal_view.pages.login import SESSION_S, PageLogin, SignedTickets, job_door
from areal_view.pages.reviews import ApiServer, KnownReview, OwnReview, Review
from areal_view.pages.runs import Runs
from starlette.testclient import TestClient
from support.recorded_run import RecordedRun

HOME = "https://digits.rl.example.com"
HTML = {"accept": "text/html"}
VERDICTS = {"right": Review.ALLOWED, "stranger": Review.FORBIDDEN, "later": Review.SILENT}


@pytest.fixture
def clock() -> list[float]:
    return [1_000_000.0]


@pytest.fixture
def page(recorded: RecordedRun, tmp_path: Path, clock: list[float]) -> Iterator[TestClient]:
    """A browser without JavaScript at a job's page, whose API server knows three tokens."""
    runs = Runs([recorded.root], tmp_path / "cache", name="digits")

    def review(token: str) -> Review:
        return VERDICTS.get(token, Review.UNKNOWN)

    tickets = SignedTickets("team/digits", clock=lambda: clock[0])
    app = PageLogin(app_of(runs), review, tickets, job_door("digits", "team"))
    with TestClient(app, base_url=HOME, follow_redirects=False) as client:
        yield client
    runs.close()


@pytest.mark.parametrize(("token", "status"), [("", 401), ("wrong", 401), ("stranger", 403), ("later", 502)])
def test_who_may_not_read_the_job_stays_out(page: TestClient, token: str, status: int) -> None:
    answer = page.post("/login", data={"token": token})
    assert answer.status_code == status
    assert 'role="alert"' in answer.text
    assert not page.cookies
    assert page.get("/r/digits", headers=HTML).headers["location"] == "/login"
    assert page.get("/r/digits/curves?name=reward").status_code == 401


def test_who_may_read_the_job_gets_in_for_an_hour(page: TestClient, clock: list[float]) -> None:
    assert page.get("/login").status_code == 200
    assert page.get("/static/page.css").status_code == 200
    answer = page.post("/login", data={"token": "right"}, headers={"x-forwarded-proto": "https", "origin": HOME})
    assert (answer.status_code, answer.headers["location"]) == (303, "/r/digits")
    told = answer.headers["set-cookie"]
    assert all(word in told for word in ("HttpOnly", "SameSite=strict", "Secure"))
    assert "right" not in told
    seen = page.get("/r/digits", headers=HTML)
    assert seen.status_code == 200
    assert "default-src 'self'" in seen.headers["content-security-policy"]
    clock[0] += SESSION_S
    assert page.get("/r/digits", headers=HTML).status_code == 303
    part = page.get("/r/digits/facts", headers={**HTML, "hx-request": "true"})
    assert (part.status_code, part.headers["hx-redirect"], part.text) == (200, "/login", "")


def test_a_made_up_cookie_opens_nothing(page: TestClient, clock: list[float]) -> None:
    page.post("/login", data={"token": "right"})
    (name,) = page.cookies
    until, _, mark = page.cookies[name].partition(".")
    page.cookies.clear()
    for forged in (f"{int(until) + 1}.{mark}", f"{until}.", f"{until}.{'0' * 64}", "x", "9" * 5000, f"-1.{mark}"):
        assert page.get("/r/digits", headers={"cookie": f"{name}={forged}"}).status_code == 401


def test_the_login_is_the_only_thing_that_can_be_written_to(page: TestClient) -> None:
    page.post("/login", data={"token": "right"})
    for path in ("/", "/r/digits", "/r/digits/steps/1"):
        assert page.post(path).status_code == page.put(path).status_code == 405
    assert page.post("/login", data={"token": "right"}, headers={"origin": "https://evil.example"}).status_code == 403
    assert page.post("/login", content=b"token=" + b"x" * 70_000).status_code == 413


def test_a_token_that_would_make_the_visitor_somebody_else_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ApiServer, "ask", lambda *_: pytest.fail("it was sent"))
    review = OwnReview(ApiServer("127.0.0.1", 1, None), "team", "digits")  # type: ignore[arg-type]
    for token in ("", "a b", "a\r\nImpersonate-User: root", "é"):
        assert review(token) is KnownReview(review.server)(token) is Review.UNKNOWN
