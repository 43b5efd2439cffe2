"""Bearer-key authorisation of the engine's HTTP API, as one ASGI layer with SGLang's rules.

With an API key alone it opens everything; with an admin key as well, control routes take only the admin key and all
others only the API key. Health, readiness and metrics are open: a probe holds no secret.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import orjson

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = frozenset({"/health", "/health_generate", "/ready", "/metrics"})
CONTROL = frozenset(
    {"/abort_request", "/pause_generation", "/continue_generation", "/update_weights_from_disk", "/begin_weight_update"}
    | {"/end_weight_update", "/update_weight_version", "/weights_checker", "/flush_cache"}
)


def permitted(path: str, bearer: str, api_key: str | None, admin_key: str | None) -> bool:
    """Whether a call of `path` with this bearer token may pass."""
    if path in OPEN:
        return True
    wanted = (admin_key or api_key) if path in CONTROL else api_key
    return wanted is None or hmac.compare_digest(bearer.encode(), wanted.encode())


class BearerLayer:
    """Answers 401 to every HTTP call that is not permitted."""

    def __init__(self, app: App, api_key: str | None, admin_key: str | None) -> None:
        self._app = app
        self._api_key = api_key
        self._admin_key = admin_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            bearer = headers.get(b"authorization", b"").decode("latin-1").removeprefix("Bearer ")
            if not permitted(scope["path"], bearer, self._api_key, self._admin_key):
                body = orjson.dumps({"error": "Unauthorized"})
                start = {"type": "http.response.start", "status": 401}
                await send({**start, "headers": [(b"content-type", b"application/json")]})
                await send({"type": "http.response.body", "body": body})
                return
        await self._app(scope, receive, send)
