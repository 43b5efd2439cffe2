"""HTTP transport to an API server.

Owns the connection: where the server is, who we are, TLS, deadlines, and how a dead peer is noticed. `kubernetes.aio`
does configuration, authentication, TLS and the pool; its models are never imported and nothing is parsed here.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from areal import __version__
from areal.errors import ConfigError
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from areal_operator.kube.errors import APPLY, UnreachableError, apply_body
from areal_operator.kube.resources import Json

log = logging.getLogger(__name__)

_CONNECT_S = 10.0
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # a dead host is noticed in half a minute
_UNSENT_MS = 30_000  # TCP_USER_TIMEOUT: bytes that nobody acknowledges for this long break the connection

JSON = "application/json"
_AGENT = f"areal-operator/{__version__}"
METADATA = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
MERGE = "application/merge-patch+json"


@dataclass(frozen=True)
class Request:
    """One request. `query` and `body` are as the API has them."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Json | None = None
    content_type: str = JSON
    accept: str = JSON


@dataclass(frozen=True)
class Response:
    """A whole answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def _watched_socket(address: Any) -> socket.socket:
    """A socket that breaks by itself when the other machine has vanished without a word."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNSENT_MS)
    return made


class _RestOfAnswer(RESTClientObject):
    def _create_connector(self) -> aiohttp.TCPConnector:
        # No limit: every watch holds a connection for minutes, and requests are bounded by the rate limit.
        return aiohttp.TCPConnector(limit=0, ssl=self.ssl_context, socket_factory=_watched_socket)


class Transport:
    """What the rest of the runtime needs of a connection. Made by `connect`."""

    def __init__(self, configuration: Configuration, refresh: asyncio.Task[None] | None) -> None:
        self._configuration = configuration
        self._rest = _RestOfAnswer(configuration)
        self._refresh = refresh

    async def request(self, request: Request, *, deadline_s: float) -> Response:
        """The whole answer, of any status. Raises UnreachableError when there is none within the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._send(request, deadline_s)
                try:
                    return Response(answer.status, answer.headers, await answer.read())
                finally:
                    answer.release()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _unreachable(request, error) from error

    @contextlib.asynccontextmanager
    async def stream(self, request: Request, *, deadline_s: float) -> "AsyncIterator[WatchStream]":
        """The answer as it comes; all of it within the deadline. Breaks are UnreachableErrors."""
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._send(request, deadline_s)
                try:
                    yield WatchStream(answer)
                finally:
                    answer.close()  # what was not read is worthless, and so is its connection
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _unreachable(request, error) from error

    async def close(self) -> None:
        """Close all connections."""
        if self._refresh is not None:
            self._refresh.cancel()
        await self._rest.close()

    async def _send(self, request: Request, deadline_s: float) -> aiohttp.ClientResponse:
        content_type = request.content_type
        body: Json | bytes | None = request.body
        if content_type == APPLY and request.body is not None:
            # With a parameter, the client library takes the body as it is.
            content_type, body = f"{APPLY}; charset=utf-8", apply_body(request.body)
        headers = {"Accept": request.accept, "Content-Type": content_type, "User-Agent": _AGENT}
        credentials: Mapping[str, Any] = await self._configuration.auth_settings()
        headers.update({one["key"]: one["value"] for one in credentials.values()})
        query = f"?{urlencode(request.query)}" if request.query else ""
        answer = await self._rest.request(  # type: ignore[no-untyped-call]
            request.method,
            f"{self._configuration.host}{request.path}{query}",
            headers=headers,
            body=body,
            _request_timeout=aiohttp.ClientTimeout(total=deadline_s, connect=_CONNECT_S),
        )
        response: aiohttp.ClientResponse = answer.response
        return response


@dataclass(frozen=True)
class WatchStream:
    """An answer of which the head is there."""

    response: aiohttp.ClientResponse

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.response.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The HTTP headers."""
        return self.response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, cut anywhere."""
        async for chunk in self.response.content.iter_any():
            yield chunk


def _unreachable(request: Request, error: BaseException) -> UnreachableError:
    what = str(error) or type(error).__name__
    return UnreachableError(f"{request.method} {request.path}: {what}")


async def connect(kubeconfig: Path | None = None) -> Transport:
    """Connect as a kubeconfig says: the given one, else `$KUBECONFIG`, else this pod's service account."""
    configuration = Configuration()
    named = str(kubeconfig or os.environ.get("KUBECONFIG", ""))
    refresh = None
    try:
        if named:
            loader = await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=named, client_configuration=configuration, persist_config=False
            )
            refresh = asyncio.create_task(_refresh(loader, configuration), name="credentials")
        else:
            kube_config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    except (kube_config.ConfigException, OSError, TypeError, KeyError) as error:
        where = f"kubeconfig {named}" if named else "no kubeconfig was given, and this is not a pod"
        raise ConfigError(
            f"{where}: {error}", fix="give --kubeconfig, or run in a pod with a service account"
        ) from error
    return Transport(configuration, refresh)


async def _refresh(loader: Any, configuration: Configuration) -> None:
    """Credentials of plugins expire; files and certificates need nothing."""
    try:
        await kube_config.refresh_token(loader, configuration)  # type: ignore[no-untyped-call]
    except TypeError:
        return  # a kubeconfig without a user has nothing to refresh
    except Exception:
        log.exception("credentials can no longer be refreshed")
