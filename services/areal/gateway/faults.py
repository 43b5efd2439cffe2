"""Errors of a gateway call, in the shape and with the status that OpenAI's clients expect.

What is permanent is never sent as 408, 409, 429 or 5xx: clients send those again, twice.
"""

import hashlib
import hmac
from typing import Any

from starlette.requests import Request


class CallRefusal(Exception):
    """A call that can't be answered. `field` names the part of the request that is wrong.

    `again` says whether a client may try once more: unless told, for 5xx.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str = "invalid_request",
        field: str | None = None,
        again: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.field = field
        self.again = status >= 500 if again is None else again

    @property
    def body(self) -> dict[str, Any]:
        """As OpenAI's API sends it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.field, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Whether a client may try again, and when."""
        if self.again:
            return {"retry-after-ms": "1000", "retry-after": "1"}
        return {"x-should-retry": "false"}


def over(reason: str) -> CallRefusal:
    """The session has ended."""
    return CallRefusal(f"this episode is over: {reason}", status=410, code="episode_over")


def broken() -> CallRefusal:
    """An exception of ours behind a call; its traceback is in the log. Asked again it would come again."""
    message = "the gateway failed at this call; its log has the traceback"
    return CallRefusal(message, status=500, code="generation_failed", again=False)


# ---- Reading of any HTTP request: its API key and its body


MAX_BODY = 16 * 1024 * 1024  # bytes of one request


def key_of(request: Request) -> str:
    """The API key of a request, as OpenAI's or as Anthropic's clients send it. Raises Refused when there is none."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" and not (key := request.headers.get("x-api-key", "")):
        raise CallRefusal(
            "give the session's API key as a bearer token, or as x-api-key", status=401, code="invalid_api_key"
        )
    return key.strip()


async def body_of(request: Request) -> bytes:
    """The body, up to MAX_BODY bytes. Raises Refused."""
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > MAX_BODY:
            raise CallRefusal(f"the body has more than {MAX_BODY} bytes", status=413, code="too_large")
    return bytes(chunks)


# ---- Capability keys of sessions: HMAC-SHA256 over the session and its expiry


_PREFIX = "sk-areal"  # clients and loggers know `sk-` as a secret


def secret_of(session_key: str) -> bytes:
    """What keys are signed with where a gateway verifies those that workers mint: both know the job's session key."""
    return hmac.new(session_key.encode(), b"areal: keys of sessions", hashlib.sha256).digest()


def mint(secret: bytes, session: str, expires: int) -> str:
    """The key of a session until `expires`, in whole seconds of the clock that `verify` is told."""
    return f"{_PREFIX}-{session}-{expires}-{_sign(secret, session, expires)}"


def verify(secret: bytes, key: str, now: float) -> str:
    """The session that a key opens. Raises Refused: 401 for a key that is none, 410 for one that has expired."""
    head, _, signature = key.rpartition("-")
    name, _, expires = head.rpartition("-")
    session = name.removeprefix(f"{_PREFIX}-")
    if not expires.isdigit() or not hmac.compare_digest(_sign(secret, session, int(expires)), signature):
        raise CallRefusal("the API key is not one of this gateway", status=401, code="invalid_api_key")
    if now >= int(expires):
        raise CallRefusal("this episode is over: its time is up", status=410, code="episode_over")
    return session


def refuse_other(session: str, path: str | None) -> None:
    """Raises Refused, 403, when a path names another session than its key."""
    if path is not None and path != session:
        raise CallRefusal("the API key belongs to another session", status=403, code="wrong_session")


def _sign(secret: bytes, session: str, expires: int) -> str:
    return hmac.new(secret, f"{session}\n{expires}".encode(), hashlib.sha256).hexdigest()[:40]
