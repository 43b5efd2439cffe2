"""The page of a cluster's jobs: what its lines say, and how long a visitor's token is held."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from areal_view.pages.job_list import MOST, Listing, VisitorSessions, lines_of, page_of
from areal_view.pages.login import SESSION_S
from areal_view.pages.site import environment

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
ADDRESS = "https://{name}.{namespace}.rl.example.com"
STATUS: dict[str, Any] = {
    "summary": "Waiting",
    "conditions": [
        {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available",
         "lastTransitionTime": "2026-03-01T11:00:00Z"},
    ],
    "progress": {"step": 4, "maxSteps": 80, "reward": 0.5, "policyVersion": 4},
    "roles": [{"name": "generation", "desired": 2, "ready": 1}, {"name": "view", "desired": 0}],
    "attempts": {"restarts": 3},
    "idle": {
        "cause": "Unschedulable", "role": "generation", "pod": "digits-generation-1",
        "since": "2026-03-01T11:00:00Z", "text": "no node has 8 GPUs",
    },
    "failures": [
        {"time": "2026-03-01T10:00:00Z", "role": "trainer", "reason": "OOMKilled", "owner": "job", "counted": True},
        {"time": "2026-03-01T11:00:00Z", "role": "worker", "reason": "Evicted", "owner": "node"},
    ],
}  # fmt: skip


def job(name: str, made: str, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "team", "name": name, "creationTimestamp": made}, "spec": spec, "status": status}


def test_a_line_says_how_far_a_job_is_and_why_nothing_is_trained() -> None:
    new, old = lines_of([job("old", "2026-02-01T12:00:00Z"), job("digits", "2026-03-01T09:00:00Z", STATUS)], NOW)
    assert (new.name, new.state, new.step, new.max_steps, new.servers, new.restarts, new.age) == (
        "digits", "Waiting", 4, 80, "1 of 2", 3, "3h",
    )  # fmt: skip
    assert new.why == "digits-generation-1: no node has 8 GPUs"
    assert (old.state, old.step, old.why, old.age) == ("Pending", None, "", "28d")


def test_the_newest_step_has_its_age_while_the_job_runs() -> None:
    made = {**STATUS, "progress": {**STATUS["progress"], "lastReportTime": (NOW - timedelta(seconds=12)).isoformat()}}
    page = page_of(job("digits", "2026-03-01T09:00:00Z", made), NOW, "")
    assert ("newest step, made", "12s ago") in page.facts
    ended = {**made, "completionTime": NOW.isoformat()}
    assert "newest step, made" not in dict(page_of(job("digits", "2026-03-01T09:00:00Z", ended), NOW, "").facts)


def test_a_status_that_cannot_be_read_costs_its_figures_and_no_page() -> None:
    (line,) = lines_of([job("digits", "yesterday", {"progress": {"step": -1}, "summary": 5})], NOW)
    assert (line.state, line.step, line.age) == ("Pending", None, "")


@pytest.mark.parametrize(
    ("view", "template", "address"),
    [(True, ADDRESS, "https://digits.team.rl.example.com"), (False, ADDRESS, ""), (True, "", "")],
)
def test_a_job_with_a_page_of_its_own_is_linked_where_pages_have_addresses(
    view: bool, template: str, address: str
) -> None:
    page = page_of(job("digits", "2026-03-01T09:00:00Z", STATUS, observability={"view": view}), NOW, template)
    assert page.address == address
    assert [one.reason for one in page.failures] == ["Evicted", "OOMKilled"]
    assert [one.name for one in page.roles] == ["generation"]


def test_a_ticket_stands_for_its_token_for_an_hour() -> None:
    clock = [0.0]
    sessions = VisitorSessions(lambda: clock[0])
    first, second = sessions.give("a"), sessions.give("b")
    assert (sessions.token(first), sessions.token(second)) == ("a", "b")
    assert not any(sessions.holds(made_up) for made_up in ("", "a", first[:-1]))
    sessions.end(second)
    assert not sessions.holds(second)
    clock[0] = SESSION_S
    assert not sessions.holds(first)


def test_no_more_tokens_are_held_than_fit_and_the_oldest_goes_first() -> None:
    sessions = VisitorSessions(lambda: 0.0)
    tickets = [sessions.give(str(n)) for n in range(MOST + 2)]
    assert [sessions.holds(tickets[n]) for n in (0, 1, 2, MOST + 1)] == [False, False, True, True]
    assert sum(map(sessions.holds, tickets)) == MOST


def job_pages() -> dict[str, str]:
    """The pages as they are drawn, with something in every part."""
    objects = [job("digits", "2026-03-01T09:00:00Z", STATUS, observability={"view": True})]
    listing = Listing("team", lines_of(objects, NOW), cut=True, refused=["other"])
    one = page_of(objects[0], NOW, ADDRESS)
    given = {"run": "", "path": "/jobs/team/digits", "query": {}, "behind": 0, "progress": None}
    pages = (("jobs.html", listing), ("job.html", one), ("jobs_refused.html", {"says": "It did not answer."}))
    return {name: environment().get_template(name).render(page=page, **given) for name, page in pages}


def test_what_a_cluster_says_is_shown_as_text() -> None:
    hostile = {**STATUS, "idle": {**STATUS["idle"], "text": "<script>alert(1)</script>"}}
    page = page_of(job("digits", "2026-03-01T09:00:00Z", hostile), NOW, "")
    text = (
        environment()
        .get_template("job.html")
        .render(page=page, run="", path="/jobs/team/digits", query={}, progress=None)
    )
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
