"""AReaL's routes of an episode for agents that score themselves: `rl/start_session`, `rl/set_reward`, `rl/end_session`.

An episode's session is begun before its agent is, so starting one answers with the session that the key opens.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from areal.gateway.core import Opened
from areal.gateway.dialects.dialect import read_object
from areal.gateway.faults import Refused, over
from areal.gateway.requests import body_of, key_of
from areal.gateway.session import Session


def episode_routes(prefix: str, find: Callable[[Request], Opened], ended: Callable[[Session], None]) -> list[Route]:
    """The routes below `prefix` and below its `/v1`; `ended` is told of a session that its agent has ended."""

    async def start(request: Request) -> Response:
        return _json({"session_id": find(request).session.name, "api_key": key_of(request)})

    async def reward(request: Request) -> Response:
        session = find(request).session
        fields = read_object(await body_of(request))
        value, answer = fields.get("reward"), fields.get("interaction_id")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise Refused(f"reward is {value!r}, not a finite number", field="reward")
        session.score(float(value), None if answer is None else str(answer))
        return _json({"message": "success"})

    async def end(request: Request) -> Response:
        session = find(request).session
        if session.over:
            raise over(session.over)
        session.close("its agent has ended it")
        ended(session)
        return _json({"message": "success", "interaction_count": session.calls})

    routes = {"start_session": start, "set_reward": reward, "end_session": end}
    return [
        Route(f"{prefix}{version}/rl/{name}", route, methods=["POST"])
        for version in ("", "/v1")
        for name, route in routes.items()
    ]


def _json(content: dict[str, object]) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")
