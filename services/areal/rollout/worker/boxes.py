"""Clients of the run's boxes: one for each event loop of user code, made when its first episode asks for a box."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from areal.clients.boxes import BoxClient
from areal.observe.waits import WaitRegistry


class EpisodeBoxes:
    """Where the episodes of a worker have their boxes. Called on loops of user code."""

    def __init__(self, address: str, token: str, waits: WaitRegistry) -> None:
        self._address = address
        self._token = token
        self._waits = waits
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, BoxClient] = WeakKeyDictionary()

    def client(self) -> BoxClient:
        """The client of the calling loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = BoxClient(self._address, self._token, waits=self._waits)
        return self._clients[loop]

    async def close(self) -> None:
        """Lets go of the service, for the calling loop: what is still open there ends after a grace."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
