"""Access to the page: a key in the printed address becomes a cookie; headers that let nothing else load or frame it.

ASGI middleware. Only GET and HEAD pass, only under a loopback name, only with the key: another user of this
machine, and a web site in the same browser, can read nothing.
"""

import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
