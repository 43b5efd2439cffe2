"""One engine over SGLang's HTTP subset. Knows wire shapes only; what to do when is the agent's.

Every call has a deadline. An engine that can't be reached is an InfraError, one that refuses is an `EngineRefusal`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from areal.errors import DataError, InfraError

CONTROL_S = 30.0  # pause, continue, abort: milliseconds when all is well; SGLang's abort polls for a second
SCORE_S = 60.0
LOAD_S = 600.0  # a large model from a network volume


class EngineRefusal(DataError):
    """The engine answered 4xx: it understood, and will not."""


@dataclass(frozen=True)
class ModelInfo:
    """What an engine says it holds."""

    model_path: str
    weight_version: str


class EngineClient:
    """Pooled connections to one engine."""

    def __init__(self, port: int, api_key: str | None = None, host: str = "127.0.0.1") -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(
            base_url=f"http://{host}:{port}",
            headers=headers,
            timeout=CONTROL_S,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            trust_env=False,  # a proxy has no business between an agent and its engine
        )

    async def close(self) -> None:
        """Close all connections; running streams end."""
        await self._http.aclose()

    async def healthy(self, timeout_s: float) -> bool:
        """Whether `/health` answers 200 in time."""
        try:
            return (await self._http.get("/health", timeout=timeout_s)).status_code == 200
        except httpx.HTTPError:
            return False

    async def model_info(self) -> ModelInfo:
        """What the engine holds."""
        info = await self._call("GET", "/model_info")
        return ModelInfo(str(info["model_path"]), str(info["weight_version"]))

    async def pause(self, mode: str = "retract") -> None:
        """Interrupt generation between two tokens."""
        await self._call("POST", "/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Continue generation."""
        await self._call("POST", "/continue_generation", {})

    async def update_from_disk(self, path: str, weight_version: str) -> None:
        """Load a directory's weights and name them. Raises EngineRefusal when the engine keeps the old ones."""
        body = {"model_path": path, "weight_version": weight_version, "flush_cache": True}
        answer = await self._call("POST", "/update_weights_from_disk", body, timeout_s=LOAD_S)
        if not answer.get("success"):
            raise EngineRefusal(f"the engine did not load {path}: {answer.get('message')}")

    async def abort(self, rid: str | None) -> None:
        """End one request, or all (`rid` None)."""
        await self._call("POST", "/abort_request", {"abort_all": True} if rid is None else {"rid": rid})

    async def score(self, token_ids: Sequence[int], extra_key: str) -> list[float]:
        """Log-probabilities of tokens 1… given those before them."""
        body = {
            "input_ids": list(token_ids),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "extra_key": extra_key,
        }
        answer = await self._call("POST", "/generate", body, timeout_s=SCORE_S)
        values = [triple[0] for triple in answer["meta_info"]["input_token_logprobs"]]
        return [float("nan") if value is None else float(value) for value in values[1:]]

    @asynccontextmanager
    async def stream(self, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[list[dict[str, Any]]]]:
        """Open a streaming `/generate`; yields an iterator over its events, as many at a time as have arrived.

        Raises EngineRefusal when the engine refuses the call, InfraError when it can't be reached or breaks off.
        """
        content = orjson.dumps({**body, "stream": True})
        timeout = httpx.Timeout(CONTROL_S, read=None)  # a paused engine streams nothing; the process is watched
        headers = {"content-type": "application/json"}
        try:
            async with self._http.stream(
                "POST", "/generate", content=content, headers=headers, timeout=timeout
            ) as response:
                if response.status_code != 200:
                    raise _refusal("/generate", response.status_code, await response.aread())
                yield _events(response)
        except httpx.HTTPError as error:
            raise InfraError(f"the engine's stream broke: {type(error).__name__} {error}".rstrip()) from error

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = CONTROL_S
    ) -> dict[str, Any]:
        content = None if body is None else orjson.dumps(body)
        headers = {"content-type": "application/json"} if body is not None else {}
        try:
            response = await self._http.request(method, path, content=content, headers=headers, timeout=timeout_s)
        except httpx.HTTPError as error:
            raise InfraError(f"the engine does not answer {path}: {type(error).__name__} {error}".rstrip()) from error
        if response.status_code >= 400:
            raise _refusal(path, response.status_code, response.content)
        value = orjson.loads(response.content) if response.content.startswith(b"{") else {}
        return dict(value)


def _refusal(path: str, status: int, content: bytes) -> Exception:
    """4xx is the request's fault, 5xx the engine's."""
    text = content.decode(errors="replace")[:500]
    try:
        value = orjson.loads(content)
        error = value.get("error", value.get("message", text))
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (orjson.JSONDecodeError, AttributeError):
        pass
    if status >= 500:
        return InfraError(f"the engine failed {path} with {status}: {text}")
    return EngineRefusal(f"the engine refused {path} with {status}: {text}")


async def _events(response: httpx.Response) -> AsyncIterator[list[dict[str, Any]]]:
    """Server-sent events of a response, decoded, in the groups in which they arrived."""
    rest = b""
    async for chunk in response.aiter_raw():
        *whole, rest = (rest + chunk).split(b"\n\n")
        events: list[dict[str, Any]] = []
        for line in whole:
            data = line.removeprefix(b"data: ")
            if data == b"[DONE]":
                if events:
                    yield events
                return
            if data:
                events.append(orjson.loads(data))
        if events:
            yield events
