"""OpenEnv: a session of an environment server over its WebSocket.

`config: {url: http://host:8000, action: message, observation: text, reset: [seed]}`. The model's answer becomes the
action's field `action`; of an observation the field `observation` is read, or all of it as JSON; `reset` names the
row's columns that the environment is reset with. A server that is gone, full or late is infrastructure's fault: the
episode is tried again, as the whole that it is.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from typing import Any

from openenv.core import GenericEnvClient
from websockets.exceptions import ConnectionClosed

_FULL = ("CAPACITY", "SESSION")  # codes of a server that has no session for us


def make(
    row: dict[str, Any],
    *,
    url: str,
    action: str = "message",
    observation: str | None = None,
    reset: Sequence[str] = ("seed",),
    timeout: float = 60.0,
) -> OpenEnvSession:
    """One session, opened by `reset`."""
    client = GenericEnvClient(base_url=url, message_timeout_s=timeout)
    return OpenEnvSession(client, action, observation, {name: row[name] for name in reset if name in row})


class OpenEnvSession:
    """One episode on one socket."""

    def __init__(self, client: Any, action: str, observation: str | None, given: dict[str, Any]) -> None:
        self._client, self._action, self._observation, self._given = client, action, observation, given
        self._socket: Any = None

    async def reset(self) -> tuple[str, dict[str, Any]]:
        """Connect and begin."""
        result = await self._ask(self._client.reset(**self._given))
        self._socket = self._client._ws
        return self._text(result.observation), {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One action."""
        result = await self._ask(self._client.step({self._action: action}))
        if self._client._ws is not self._socket:  # it connects anew by itself, to a session that knows nothing of ours
            raise ConnectionError("the environment's connection was lost within an episode")
        return self._text(result.observation), float(result.reward or 0.0), bool(result.done), False, {}

    async def close(self) -> None:
        """Give the session back."""
        await self._client.close()

    async def _ask(self, asked: Awaitable[Any]) -> Any:
        try:
            return await asked
        except ConnectionClosed as error:
            raise ConnectionError(f"the environment's connection was lost: {error}") from error
        except RuntimeError as error:
            if any(code in str(error) for code in _FULL):
                raise ConnectionError(str(error)) from error
            raise

    def _text(self, observation: Any) -> str:
        if self._observation is not None:
            return str(observation[self._observation])
        return observation if isinstance(observation, str) else json.dumps(observation)
