"""The page of a cluster's jobs: RLJobs with what the API server lets each visitor read, and nothing else.

Every question to the API server carries the visitor's own token, so that this process needs no right, and one that is
broken into gives away no more than its visitors' tokens of the last hour. It mounts no run: a job's own page does.
"""

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import orjson
from areal.spec.status import ConditionEntry, FailureEntry, IdleStatus, JobStatus, RoleStatus
from areal_operator.kube.resources import RLJOBS, Json
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from areal_view.pages.login import SESSION_S, Door, PageLogin, cookie_of
from areal_view.pages.reviews import ApiServer, KnownReview
from areal_view.pages.site import STATIC, age, environment

# ---- Pages about jobs of a cluster: the list of RLJobs, and one RLJob. Pure: objects of the API server in, values out


_UNSEEN = "Pending"


@dataclass(frozen=True)
class JobLine:
    """A job in the list."""

    namespace: str
    name: str
    state: str
    step: int | None
    max_steps: int | None
    reward: float | None
    policy_version: int | None
    servers: str  # ready of wanted
    restarts: int
    why: str  # why nothing is trained now; empty while something is
    age: str


@dataclass(frozen=True)
class JobPage:
    """One job. `address` is its own page's, where the chart was told how to make it and the job has one."""

    line: JobLine
    facts: Sequence[tuple[str, str]]
    idle: IdleStatus | None
    conditions: Sequence[ConditionEntry]
    roles: Sequence[RoleStatus]
    failures: Sequence[FailureEntry]  # the newest first
    address: str


def lines_of(objects: Iterable[Json], now: datetime) -> list[JobLine]:
    """The jobs, the newest first."""
    newest = sorted(objects, key=lambda one: str(one["metadata"].get("creationTimestamp", "")), reverse=True)
    return [line_of(one, now) for one in newest]


def line_of(found: Json, now: datetime) -> JobLine:
    """A job in one line."""
    status, metadata = _status(found), found["metadata"]
    progress, generation = status.progress, next((one for one in status.roles if one.name == "generation"), None)
    return JobLine(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata["name"]),
        state=status.summary or _UNSEEN,
        step=progress.step if progress else None,
        max_steps=progress.max_steps if progress else None,
        reward=progress.reward if progress else None,
        policy_version=progress.policy_version if progress else None,
        servers=f"{generation.ready} of {generation.desired}" if generation and generation.desired else "",
        restarts=status.attempts.restarts if status.attempts else 0,
        why=status.idle.sentence if status.idle else "",
        age=_since(str(metadata.get("creationTimestamp", "")), now),
    )


def page_of(found: Json, now: datetime, address: str) -> JobPage:
    """One job. `address` is a template with `{name}` and `{namespace}`; empty: none."""
    status, line = _status(found), line_of(found, now)
    shown = bool((found.get("spec", {}).get("observability") or {}).get("view"))
    return JobPage(
        line=line,
        facts=_facts(status, line, now),
        idle=status.idle,
        conditions=status.conditions,
        roles=[one for one in status.roles if one.desired],
        failures=status.failures[::-1],
        address=address.replace("{name}", line.name).replace("{namespace}", line.namespace) if shown else "",
    )


def _facts(status: JobStatus, line: JobLine, now: datetime) -> list[tuple[str, str]]:
    found = [("age", line.age), ("restarts of the trainers", str(line.restarts))]
    progress = status.progress
    if progress is not None:
        figures: list[tuple[str, Any]] = [
            ("reward of the last step", progress.reward),
            ("staleness, versions", progress.staleness),
            ("policy version", progress.policy_version),
            ("oldest version on a server", progress.oldest_served_version),
            ("groups trained", progress.groups_trained),
        ]
        found += [(name, f"{value:g}") for name, value in figures if value is not None]
        if progress.last_report_time is not None and status.completion_time is None:
            found.append(("newest step, made", f"{age((now - progress.last_report_time).total_seconds())} ago"))
        if progress.estimated_remaining_seconds is not None:
            found.append(("left", age(progress.estimated_remaining_seconds)))
    if status.checkpoint is not None:
        found.append(("checkpoint", f"of step {status.checkpoint.step}"))
    if status.audit is not None:
        found.append(("audit", status.audit.message or f"{status.audit.lost} lost, {status.audit.duplicated} twice"))
    return found


def _status(found: Json) -> JobStatus:
    """Status that the operator wrote; empty where that can't be read."""
    try:
        return JobStatus.model_validate(found.get("status") or {}, by_alias=True, by_name=False)
    except ValidationError:
        return JobStatus()


def _since(time: str, now: datetime) -> str:
    try:
        return age((now - datetime.fromisoformat(time).astimezone(UTC)).total_seconds())
    except ValueError:
        return ""


# ---- The page of a cluster's jobs: RLJobs with what the API server lets each visitor read, and nothing else


# Tokens of visitors who have logged in, in this process' memory alone: what they may see is asked with their own.

MOST = 1_000  # beyond them the oldest must log in again


class VisitorSessions:
    """Tickets that stand for a token, for an hour. Safe from any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._held: dict[str, tuple[str, float]] = {}  # in order of their ends
        self._lock = threading.Lock()

    def give(self, token: str) -> str:
        """A new ticket for this token."""
        ticket = secrets.token_urlsafe(32)
        with self._lock:
            for one in [one for one, (_, until) in self._held.items() if until <= self._clock()]:
                del self._held[one]
            if len(self._held) >= MOST:
                del self._held[next(iter(self._held))]
            self._held[ticket] = (token, self._clock() + SESSION_S)
        return ticket

    def holds(self, cookie: str) -> bool:
        """Whether it was given, and is not over."""
        return self.token(cookie) is not None

    def token(self, cookie: str) -> str | None:
        """The token that a ticket stands for; None when it is over, or was never given."""
        with self._lock:
            token, until = self._held.get(cookie, ("", 0.0))
        return token if self._clock() < until else None

    def end(self, cookie: str) -> None:
        """Forget it."""
        with self._lock:
            self._held.pop(cookie, None)


MOST_JOBS = 500  # of a namespace, or of the cluster
_AT_ONCE = 8  # questions to the API server
_COOKIE = "areal_jobs"
_ACCOUNT = "system:serviceaccount:"
_DOOR = Door(
    title="Jobs",
    where="this cluster",
    rule="You see the jobs (rljobs) that the API server lets the token's holder list.",
    home="/",
    cookie=_COOKIE,
    root="jobs",
)
_SAYS = {
    0: (502, "The API server did not answer: try again."),
    403: (403, "The API server does not let you read this. Ask for the role `view` of the namespace."),
    404: (404, "There is no such job, or no RLJobs at all: is the chart's CRD installed?"),
}


@dataclass(frozen=True)
class Listing:
    """What one visitor sees. `namespace` is the one asked for; empty: all that are looked at."""

    namespace: str
    jobs: Sequence[JobLine]
    cut: bool  # there are more
    refused: Sequence[str]  # namespaces that they may not list; "" is the whole cluster


class JobList:
    """The handlers. `namespaces`: those that are listed when none is asked for; none: the whole cluster.

    `address`: of a job's own page, with `{name}` and `{namespace}`; empty when there is none.
    """

    def __init__(self, server: ApiServer, sessions: VisitorSessions, namespaces: Sequence[str], address: str) -> None:
        self._server = server
        self._sessions = sessions
        self._namespaces = tuple(namespaces) or ("",)
        self._address = address
        self._templates = environment()
        self._turn = asyncio.Semaphore(_AT_ONCE)

    def routes(self) -> list[Route | Mount]:
        """All of them."""
        return [
            Route("/", self._all),
            Route("/jobs/{namespace}/{name}", self._one),
            Route("/favicon.ico", lambda _: Response(status_code=204)),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    async def _all(self, request: Request) -> Response:
        token = self._token(request)
        asked = request.query_params.get("namespace", "").strip()
        wanted = (asked,) if asked else self._namespaces
        found: list[Json] = []
        refused: list[str] = []
        cut = False
        for namespace in wanted:
            status, body = await self._ask(f"{RLJOBS.path(namespace or None)}?limit={MOST_JOBS}", token)
            if status == 403:
                refused.append(namespace)
            elif status != 200:
                return self._instead(request, status)
            else:
                found += body.get("items", [])
                cut = cut or bool(body.get("metadata", {}).get("continue"))
        if refused == [""] and (home := await self._home(token)):
            return RedirectResponse(f"/?namespace={quote(home)}", 303)
        page = Listing(asked, lines_of(found, datetime.now(UTC)), cut, refused)
        return self._answer(request, "jobs.html", page)

    async def _one(self, request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        status, body = await self._ask(RLJOBS.path(namespace, name), self._token(request))
        if status != 200:
            return self._instead(request, status)
        return self._answer(request, "job.html", page_of(body, datetime.now(UTC), self._address))

    async def _ask(self, path: str, token: str) -> tuple[int, dict[str, Any]]:
        async with self._turn:
            return await asyncio.to_thread(self._server.ask, path, token)

    async def _home(self, token: str) -> str:
        """The namespace of a service account, which may not list those of others."""
        async with self._turn:
            name = await asyncio.to_thread(KnownReview(self._server).name_of, token)
        return name.removeprefix(_ACCOUNT).partition(":")[0] if name.startswith(_ACCOUNT) else ""

    def _token(self, request: Request) -> str:
        return self._sessions.token(cookie_of(request.headers, _COOKIE)) or ""

    def _instead(self, request: Request, status: int) -> Response:
        """Answer where the API server gives nothing."""
        if status == 401:  # the token has expired
            self._sessions.end(cookie_of(request.headers, _COOKIE))
            return RedirectResponse("/login", 303)
        code, says = _SAYS.get(status, (502, f"The API server answered {status}."))
        return self._answer(request, "jobs_refused.html", {"says": says}, code)

    def _answer(self, request: Request, template: str, value: Any, status: int = 200) -> Response:
        if request.query_params.get("format") == "json":
            told = value if isinstance(value, dict) else asdict(value)
            return Response(orjson.dumps(told, default=str), status, media_type="application/json")
        text = self._templates.get_template(template).render(
            page=value, run="", path=request.url.path, query=dict(request.query_params), progress=None
        )
        return HTMLResponse(text, status)


def job_list(
    server: ApiServer, namespaces: Sequence[str], address: str, clock: Callable[[], float] | None = None
) -> ASGIApp:
    """The application behind its login."""
    sessions = VisitorSessions(clock) if clock else VisitorSessions()
    app = Starlette(routes=JobList(server, sessions, namespaces, address).routes())
    return PageLogin(app, KnownReview(server), sessions, _DOOR)
