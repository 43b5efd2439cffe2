"""Capability keys of sessions: HMAC-SHA256 over the session and its expiry.

Pure; the clock is an argument. A key is good for one session of one attempt at a sample and says nothing else.
"""

import hashlib
import hmac

from areal.gateway.faults import CallRefusal

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
