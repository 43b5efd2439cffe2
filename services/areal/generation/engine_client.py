"""One engine over SGLang's HTTP subset. Knows wire shapes only; what to do when is the agent's.

Every call has a deadline. An engine that can't be reached is an InfraError, one that refuses is an `EngineRefusal`.
The LoRA adapters that stock SGLang holds beside each other, one a version, are counted here: one that must go is the
oldest; requests that still use it are ended first, with what was made, because the engine unloads nothing in use.
"""

import asyncio
import logging
import math
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from areal.errors import DataError, InfraError
from areal.values.routes import RouteShape
from areal.weights.group import Bucket

log = logging.getLogger(__name__)

CONTROL_S = 30.0  # pause, continue, abort: milliseconds when all is well; SGLang's abort polls for a second
SCORE_S = 60.0
GROUP_S = 150.0  # of a rendezvous or one bucket; the trainer gives up before
LOAD_S = 600.0  # a large model from a network volume
KEEP_ALIVE_S = 2.0  # an engine closes idle connections after five: never use one that it is about to close
MEMORY_S = 20.0  # of giving memory back or taking it again
IDLE_S = 5.0  # from a pause until the batch in work is over: one forward pass
_LOOK_S = 0.02
LOADS_S = 5.0  # of a look at the engine's queue and cache; a gap in a graph costs less than a late pause
LOADS = ("num_running_reqs", "num_waiting_reqs", "token_usage", "cache_hit_rate", "gen_throughput")
_SHARES = ("token_usage", "cache_hit_rate")
WEIGHTS, KV_CACHE = "weights", "kv_cache"  # kinds of memory: SGLang's tags
CONTROL_CONNECTIONS = 16
JSON = {"content-type": "application/json"}


class EngineRefusal(DataError):
    """The engine answered 4xx: it understood, and will not."""


class EngineClient:
    """Connections to one engine. Control has its own: it never waits for one that a stream holds."""

    def __init__(
        self, port: int, api_key: str | None = None, *, embedded: bool, routes: RouteShape | None = None
    ) -> None:
        """`embedded`: the engine ends many requests by one call and tells checksums, which stock SGLang does not.
        `routes`: it is asked for the experts of each token, of a model of this shape, and tells them in SGLang's form.
        """
        self.routes = routes
        self._base = f"http://127.0.0.1:{port}"
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._embedded = embedded
        self._control = self._open(CONTROL_CONNECTIONS)
        self._data = self._open(0)

    def _open(self, connections: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=KEEP_ALIVE_S, use_dns_cache=False)
        return aiohttp.ClientSession(self._base, connector=connector, headers=self._headers, trust_env=False)

    async def close(self) -> None:
        """Close all connections; running streams end."""
        await self._data.close()
        await self._control.close()

    async def healthy(self, timeout_s: float) -> bool:
        """Whether `/health` answers 200 in time."""
        try:
            async with self._control.get("/health", timeout=aiohttp.ClientTimeout(timeout_s)) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def loads(self) -> dict[str, float]:
        """LOADS as the engine tells them, else NaN: over data-parallel ranks counts are summed, shares averaged."""
        try:
            ranks = (await self._call("GET", "/v1/loads", timeout_s=LOADS_S)).get("loads") or []
        except (InfraError, EngineRefusal):
            ranks = []
        told = {name: [float(rank[name]) for rank in ranks if name in rank] for name in LOADS}
        over = {name: len(values) if name in _SHARES else 1 for name, values in told.items()}
        return {name: sum(values) / over[name] if values else math.nan for name, values in told.items()}

    async def weight_version(self) -> str:
        """Version that the engine holds."""
        return str((await self._call("GET", "/model_info"))["weight_version"])

    async def pause(self, mode: str = "retract") -> None:
        """Interrupt generation between two tokens."""
        await self._call("POST", "/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Continue generation."""
        await self._call("POST", "/continue_generation", {})

    async def idle(self) -> bool:
        """Whether nothing is in work; its prefix cache is then empty. What waits for the end of a pause doesn't count.

        SGLang asks itself the same before it releases memory, and ends where the answer is no.
        """
        try:
            await self._call("POST", "/flush_cache")
        except EngineRefusal:
            return False
        return True

    async def release_memory(self, kinds: Sequence[str]) -> None:
        """Give the memory of these kinds back. For `EngineMemory`, which knows when."""
        await self._call("POST", "/release_memory_occupation", {"tags": list(kinds)}, timeout_s=MEMORY_S)

    async def resume_memory(self, kinds: Sequence[str]) -> None:
        """Take the memory of these kinds again. For `EngineMemory`, which knows when."""
        await self._call("POST", "/resume_memory_occupation", {"tags": list(kinds)}, timeout_s=MEMORY_S)

    async def update_from_disk(self, path: str, weight_version: str) -> None:
        """Load a directory's weights and name them. Raises EngineRefusal when the engine keeps the old ones."""
        body = {"model_path": path, "weight_version": weight_version, "flush_cache": True}
        answer = await self._call("POST", "/update_weights_from_disk", body, timeout_s=LOAD_S)
        if not answer.get("success"):
            raise EngineRefusal(f"the engine did not load {path}: {answer.get('message')}")

    async def join_group(self, place: Mapping[str, Any]) -> None:
        """Become ranks of a process group; answers when all of its ranks are there. Raises EngineRefusal."""
        await self._call("POST", "/init_weights_update_group", dict(place), timeout_s=GROUP_S)

    async def leave_group(self, name: str) -> None:
        """Leave a process group. Raises EngineRefusal when there is none."""
        await self._call("POST", "/destroy_weights_update_group", {"group_name": name})

    async def begin_update(self) -> None:
        """Buckets follow."""
        await self._call("POST", "/begin_weight_update", {"selector": "target"})

    async def end_update(self) -> None:
        """All buckets came, or no more will."""
        await self._call("POST", "/end_weight_update", {})

    async def receive_bucket(self, group: str, bucket: Bucket, weight_version: str | None) -> None:
        """Take one broadcast; the last one names what the engine then holds. Raises EngineRefusal."""
        body: dict[str, Any] = {
            "names": [piece.name for piece in bucket.pieces],
            "dtypes": [piece.dtype for piece in bucket.pieces],
            "shapes": [list(piece.shape) for piece in bucket.pieces],
            "group_name": group,
            "load_format": "flattened_bucket",
            "flush_cache": weight_version is not None,
        }
        if weight_version is not None:
            body["weight_version"] = weight_version
        if self._embedded:
            body["xxh3"] = [piece.xxh3 for piece in bucket.pieces]
        await self._call("POST", "/update_weights_from_distributed", body, timeout_s=GROUP_S)

    async def checksums(self) -> dict[str, str] | None:
        """xxh3-128 of every tensor in use by its Hugging Face name; None from an engine that can't tell these."""
        if not self._embedded:
            return None
        answer = await self._call("POST", "/weights_checker", {"action": "checksum"}, timeout_s=SCORE_S)
        return {str(name): str(value) for name, value in answer["ranks"][0]["checksums"].items()}

    async def abort(self, rids: Sequence[str]) -> None:
        """End requests."""
        if self._embedded and len(rids) > 1:
            await self._call("POST", "/abort_request", {"rids": list(rids)})
            return
        for rid in rids:
            await self._call("POST", "/abort_request", {"rid": rid})

    async def abort_all(self) -> None:
        """End all requests."""
        await self._call("POST", "/abort_request", {"abort_all": True})

    async def load_adapter(self, name: str, path: str) -> None:
        """Load a LoRA adapter beside those there are, while generation goes on. Raises EngineRefusal."""
        answer = await self._call("POST", "/load_lora_adapter", {"lora_name": name, "lora_path": path}, LOAD_S)
        if not answer.get("success"):
            raise EngineRefusal(f"the engine did not load the adapter {path}: {answer.get('error_message')}")

    async def unload_adapter(self, name: str) -> None:
        """Give an adapter's room back. Answers when no request uses it any more."""
        answer = await self._call("POST", "/unload_lora_adapter", {"lora_name": name}, LOAD_S)
        if not answer.get("success"):
            raise EngineRefusal(f"the engine did not unload the adapter {name}: {answer.get('error_message')}")

    async def score(self, token_ids: Sequence[int], extra_key: str, adapter: str | None = None) -> list[float]:
        """Log-probabilities of tokens 1… given those before them, with an adapter if one is named."""
        body = {
            "input_ids": list(token_ids),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "extra_key": extra_key,
            **({} if adapter is None else {"lora_path": adapter}),
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
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONTROL_S)  # a paused engine streams nothing
        try:
            async with self._data.post("/generate", data=content, headers=JSON, timeout=timeout) as response:
                if response.status != 200:
                    raise _refusal("/generate", response.status, await response.read())
                yield _events(response) if self.routes is None else _with_rows(_events(response), self.routes)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InfraError(f"the engine's stream broke: {type(error).__name__} {error}".rstrip()) from error

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = CONTROL_S
    ) -> dict[str, Any]:
        data = None if body is None else orjson.dumps(body)
        timeout = aiohttp.ClientTimeout(timeout_s)
        try:
            headers = None if body is None else JSON
            async with self._control.request(method, path, data=data, headers=headers, timeout=timeout) as response:
                status, content = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InfraError(f"the engine does not answer {path}: {type(error).__name__} {error}".rstrip()) from error
        if status >= 400:
            raise _refusal(path, status, content)
        value = orjson.loads(content) if content.startswith(b"{") else {}
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


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[list[dict[str, Any]]]:
    """Server-sent events of a response, decoded, in the groups in which they arrived."""
    rest = b""
    async for chunk in response.content.iter_any():
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


async def _with_rows(
    events: AsyncIterator[list[dict[str, Any]]], shape: RouteShape
) -> AsyncIterator[list[dict[str, Any]]]:
    """Stock SGLang's answers with routes in the project's form; without any where they are no routers' choices.

    Some of its kernels choose experts where it doesn't see them, and its buffer then holds anything: a sample without
    routes is refused where it is trained, with what to do.
    """
    async for answers in events:
        for answer in answers:
            meta = answer.get("meta_info") or {}
            told = meta.pop("routed_experts", None)
            if told and (rows := shape.rows_of_layers(b64decode(told))) is not None:
                meta["routed_experts_rows"], meta["routed_experts"] = len(rows), rows.tobytes()
            elif told:
                log.error("SGLang told experts that no router can have chosen: %d letters", len(told))
        yield answers


class EngineMemory:
    """Which memory of one engine is released. Stock SGLang ends when a batch is in work at a release, and when what
    isn't released is resumed; an engine behind this is asked neither.
    """

    def __init__(self, engine: EngineClient, kinds: Sequence[str] = (KV_CACHE, WEIGHTS)) -> None:
        """`kinds` are what is released: the cache alone where weights stay."""
        self._engine = engine
        self._kinds = kinds
        self.released: set[str] = set()

    async def release(self) -> None:
        """Interrupt generation, and give memory back. Raises InfraError when the engine doesn't come to rest."""
        await self._engine.pause("retract")
        deadline = time.monotonic() + IDLE_S
        while not await self._engine.idle():
            if time.monotonic() > deadline:
                raise InfraError(f"the engine still has a batch in work {IDLE_S:.0f} s after its pause")
            await asyncio.sleep(_LOOK_S)
        for kind in self._kinds:
            if kind not in self.released:
                await self._engine.release_memory([kind])
                self.released.add(kind)

    async def resume(self, kind: str) -> None:
        """Take memory again, if it is released. Generation stays paused; weights then have to be loaded."""
        if kind in self.released:
            await self._engine.resume_memory([kind])
            self.released.discard(kind)

    def forget(self) -> None:
        """The engine died, and all it held."""
        self.released.clear()


class Adapters:
    """The adapters of one engine by name, oldest first."""

    def __init__(self, engine: EngineClient, slots: int, leave: Callable[[str], None]) -> None:
        """`leave` ends the requests that use an adapter."""
        self._engine = engine
        self._slots = slots
        self._leave = leave
        self._loaded: list[str] = []

    async def load(self, name: str, path: Path) -> None:
        """Load a version; the oldest one goes when there is no room."""
        if name in self._loaded:
            await self.unload(name)
        while len(self._loaded) >= self._slots:
            await self.unload(self._loaded[0])
        await self._engine.load_adapter(name, str(path))
        self._loaded.append(name)

    async def unload(self, name: str) -> None:
        """Give a version's room back."""
        self._leave(name)
        await self._engine.unload_adapter(name)
        self._loaded.remove(name)

    def forget(self) -> None:
        """The engine died, and all it held."""
        self._loaded.clear()
