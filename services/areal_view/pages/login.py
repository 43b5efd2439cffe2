"""Access to a page: on a cluster by a Kubernetes token, once, for a cookie of an hour; on loopback by a printed key.

ASGI middleware. Without the cookie there are the login and the files that it is drawn with. Only GET and HEAD pass, and
the login's POST. What a cookie holds, the door's tickets decide; a restart asks everybody again.
"""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Protocol
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from areal_view.pages.reviews import Review
from areal_view.pages.site import environment

SESSION_S = 3600.0  # after which the API server is asked again: a right may have been withdrawn
_MOST_BYTES = 64 << 10  # of a login: tokens have a few thousand
_AT_ONCE = 4  # questions to the API server
_PATH = "/login"
_OPEN = ("/static/",)  # a login's own looks; the files are the package's
_SAYS = {
    Review.UNKNOWN: (401, "The API server does not know this token: it may have expired."),
    Review.FORBIDDEN: (403, "The API server knows this token, and its holder may not look."),
    Review.SILENT: (502, "The API server did not answer: try again."),
}


class Tickets(Protocol):
    """Cookies of visitors who have logged in."""

    def give(self, token: str) -> str:
        """A new one for whoever showed this token."""

    def holds(self, cookie: str) -> bool:
        """Whether it was given, and is not over."""


@dataclass(frozen=True)
class Door:
    """What a login leads to, and what its page says."""

    title: str
    where: str
    rule: str  # who may look
    home: str  # the path behind it
    cookie: str  # its name: forwarded ports share the cookies of one host
    root: str = "runs"  # name of the page `/`


class PageLogin:
    """Around the whole application. `review` says of a token whether its holder may look; it may block."""

    def __init__(self, app: ASGIApp, review: Callable[[str], Review], tickets: Tickets, door: Door) -> None:
        self._app = app
        self._review = review
        self._tickets = tickets
        self._door = door
        self._page = environment().get_template("login.html")
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = await self._answer(scope, receive)
        await (answer or self._app)(scope, receive, guarded(send))

    async def _answer(self, scope: Scope, receive: Receive) -> Response | None:
        """Answer instead of a page; None: the page."""
        method, path, headers = scope["method"], scope["path"], Headers(scope=scope)
        if path == _PATH and method == "POST":
            return await self._log_in(Request(scope, receive))
        if method not in ("GET", "HEAD"):
            return PlainTextResponse("this page only shows\n", 405, {"allow": "GET, HEAD"})
        if path == _PATH:
            return self._ask(200, "")
        if path.startswith(_OPEN) or self._tickets.holds(cookie_of(headers, self._door.cookie)):
            return None
        if "hx-request" in headers:  # a part of a page that stands open: the whole page goes there
            return Response(headers={"hx-redirect": _PATH})
        if "text/html" in headers.get("accept", ""):
            return RedirectResponse(_PATH, 303)
        return PlainTextResponse(f"log in at {_PATH}\n", 401)

    async def _log_in(self, request: Request) -> Response:
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            return PlainTextResponse("a login comes from its own page\n", 403)
        raw = b""
        async for part in request.stream():
            raw += part
            if len(raw) > _MOST_BYTES:
                return PlainTextResponse("this is no token\n", 413)
        token = parse_qs(raw.decode("utf-8", "replace")).get("token", [""])[0].strip()
        async with self._turn:
            found = await asyncio.to_thread(self._review, token)
        if found is not Review.ALLOWED:
            return self._ask(*_SAYS[found])
        answer = RedirectResponse(self._door.home, 303)
        safe = request.headers.get("x-forwarded-proto") == "https"  # a forwarded port has no TLS
        made = self._tickets.give(token)
        answer.set_cookie(self._door.cookie, made, httponly=True, samesite="strict", secure=safe)
        return answer

    def _ask(self, status: int, refusal: str) -> Response:
        text = self._page.render(run="", path=_PATH, query={}, progress=None, door=self._door, refusal=refusal)
        return HTMLResponse(text, status)


class SignedTickets:
    """Tickets that say until when they hold, signed with a key of this process: nothing is stored."""

    def __init__(self, what: str, clock: Callable[[], float] = time.time) -> None:
        self._what = what
        self._clock = clock
        self._key = secrets.token_bytes(32)

    def give(self, token: str) -> str:
        """A new one."""
        return self._signed(int(self._clock() + SESSION_S))

    def holds(self, cookie: str) -> bool:
        """Whether it was signed here, and is not over."""
        until, _, _ = cookie.partition(".")
        if not (until.isascii() and until.isdigit()) or len(until) > 12:
            return False
        known = hmac.compare_digest(cookie.encode(), self._signed(int(until)).encode())
        return known and self._clock() < int(until)

    def _signed(self, until: int) -> str:
        told = f"{self._what}/{until}"
        return f"{until}.{hmac.new(self._key, told.encode(), hashlib.sha256).hexdigest()}"


def job_door(job: str, namespace: str) -> Door:
    """The login to one job's page."""
    return Door(
        title=job,
        where=namespace,
        rule=f"Whoever may get this job (rljobs) in {namespace} may look.",
        home=f"/r/{job}",
        cookie=f"areal_view_{namespace}_{job}",
    )


# ---- Access to the page: a key in the printed address becomes a cookie; headers that let nothing else load or frame it
# ASGI middleware. Only GET and HEAD pass, only under a loopback name, only with the key: another user of this
# machine, and a web site in the same browser, can read nothing.


POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'self'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def guarded(send: Send) -> Send:
    """`send`, with the headers of every answer added."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(_HEADERS)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return sending


def cookie_of(headers: Headers, name: str) -> str:
    """A cookie's value; empty without it."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


class PageAccess:
    """Around the whole application. `port` names the cookie: cookies of one host are shared by its ports."""

    def __init__(self, app: ASGIApp, *, key: str, port: int) -> None:
        self._app = app
        self._key = key
        self._cookie = f"areal_view_{port}"
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        refusal = self._refuse(scope)
        await (refusal or self._app)(scope, receive, guarded(send))

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if headers.get("host", "") not in self._hosts:
            return PlainTextResponse("open the address that `areal view` printed\n", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("this page only shows\n", 405, {"allow": "GET, HEAD"})
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        given = dict(query).get("key")
        if given is not None and secrets.compare_digest(given.encode(), self._key.encode()):
            rest = urlencode([(name, value) for name, value in query if name != "key"])
            answer = RedirectResponse(scope["path"] + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(self._cookie, self._key, httponly=True, samesite="strict")
            return answer
        if not secrets.compare_digest(cookie_of(headers, self._cookie).encode(), self._key.encode()):
            return PlainTextResponse("open the address that `areal view` printed: it holds the key\n", 403)
        return None
