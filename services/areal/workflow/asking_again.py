"""HTTP transport with retries: a request whose connection breaks before an answer begins is sent again.

It says so in the header by which OpenAI's and Anthropic's clients do, so that the gateway joins the answer under way
or gives the one that was made. Only requests whose body can be sent again are.
"""

from __future__ import annotations

import asyncio

import httpx

_PAUSES_S = (0.1, 0.5, 1.0, 2.0, 4.0)  # a gateway is back within seconds, and listened for meanwhile
_RETRY = "x-stainless-retry-count"


class AskingAgain(httpx.AsyncBaseTransport):
    """See above. `transport` sends the requests."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request until an answer begins, some times. Raises httpx.TransportError."""
        for retry, pause_s in enumerate(_PAUSES_S, 1):
            try:
                return await self._transport.handle_async_request(request)
            except (httpx.NetworkError, httpx.RemoteProtocolError):
                if not isinstance(request.stream, httpx.ByteStream):
                    raise
            await asyncio.sleep(pause_s)
            request.headers[_RETRY] = str(retry)
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Close its connections."""
        await self._transport.aclose()
