"""The engine as asyncio sees it: requests in, outputs out, commands awaited.

Owns the way between the event loop and the scheduler's thread: which request belongs to which subscriber, and the
loading of new weights beside those in use. Outputs cross once a step, however many requests they belong to.
"""

import asyncio
import ctypes
import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from areal.engine import commands
from areal.engine.cache import KVCache
from areal.engine.group import GroupReceiver
from areal.engine.model import DecoderModel
from areal.engine.model_config import ModelConfig
from areal.engine.module_model import ModuleModel, ServedModel
from areal.engine.request import BadRequest, GenerateRequest, Output, RequestLimits
from areal.engine.scheduler import DecodeScheduler, SchedulerLimits
from areal.engine.stats import Stats
from areal.engine.weights import DTYPES, read_tensors
from areal.errors import DataError
from areal.weights.adapter import ADAPTER_CONFIG

CACHE_BYTES = 2 << 30  # unless told otherwise; never by free memory, which depends on what else runs


@dataclass(frozen=True)
class EngineOptions:
    """What the command line decides."""

    model_path: Path
    weight_version: str = "default"
    dtype: str = "float32"
    fp32_head: bool = False  # logits aren't rounded to `dtype`
    max_running_requests: int = 128
    cache_bytes: int = CACHE_BYTES
    max_prefill_tokens: int = 8192
    context_length: int | None = None
    stream_interval: int = 1
    tokenizer_path: Path | None = None  # None: the model's
    skip_tokenizer: bool = False


class Subscription:
    """The outputs of one call's requests, newest only: each output holds all of its request's tokens."""

    def __init__(self, requests: list[GenerateRequest]) -> None:
        self.requests = requests
        self.received_s = time.time()
        self.unfinished = {request.rid for request in requests}  # those without an end so far
        self._fresh: dict[str, Output] = {}
        self._wake = asyncio.Event()

    def push(self, output: Output) -> None:
        """On the event loop: a request moved on."""
        self._fresh[output.request.rid] = output
        if output.finish is not None:
            self.unfinished.discard(output.request.rid)
        self._wake.set()

    async def next(self) -> list[Output]:
        """Wait for news and take all there is; empty when everything was taken."""
        if not self._fresh and self.unfinished:
            await self._wake.wait()
        self._wake.clear()
        fresh, self._fresh = self._fresh, {}
        return list(fresh.values())


class TorchEngine:
    """Generation with swappable weights. Start it inside a running event loop."""

    def __init__(self, options: EngineOptions, on_failure: Callable[[BaseException], None]) -> None:
        """`on_failure` is called on the scheduler's thread when it fails: nothing will move any more."""
        if options.dtype not in DTYPES:
            raise DataError(f"dtype {options.dtype} is unknown", fix=f"use one of {', '.join(DTYPES)}")
        self.options = options
        self.config = ModelConfig.from_dir(options.model_path)
        dtype = DTYPES[options.dtype]
        self.context = min(options.context_length or self.config.context, self.config.context)
        tokenizer = None if options.skip_tokenizer else _tokenizer(options.tokenizer_path or options.model_path)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscriptions: dict[str, Subscription] = {}
        self._loading = asyncio.Lock()
        self.update_open = False  # between begin_ and end_weight_update
        self.group = GroupReceiver()
        self.draining = False
        self._model: ServedModel = (
            DecoderModel(self.config, dtype, self.context, fp32_head=options.fp32_head)
            if self.config.module is None
            else ModuleModel(self.config, options.model_path, dtype, fp32_head=options.fp32_head)
        )
        self.limits = RequestLimits(
            self.config.vocab, self.context, options.stream_interval, tokenizer is not None, self._model.image_shape
        )
        weights = self._model.build(options.model_path, read_tensors(options.model_path))
        self._base: Any = weights  # what adapters are for: the model that the engine started with
        affordable = options.cache_bytes // KVCache.bytes_per_token(self.config, dtype)
        # cache positions that fit into this memory, and at least one whole context
        self.max_total_tokens = max(KVCache.capacity_for(self.context), min(1 << 20, affordable))
        self._scheduler = DecodeScheduler(
            self._model,
            weights,
            version=options.weight_version,
            model_path=str(options.model_path),
            limits=SchedulerLimits(options.max_running_requests, self.max_total_tokens, options.max_prefill_tokens),
            deliver=self._deliver,
            on_failure=on_failure,
            decode_text=(lambda ids: str(tokenizer.decode(ids))) if tokenizer is not None else None,
        )

    def start(self) -> None:
        """Begin stepping; outputs arrive on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._scheduler.start()

    def stop(self) -> None:
        """End everything with what was made."""
        self._scheduler.post(commands.StopThread())
        self._scheduler.join(5.0)

    @property
    def stats(self) -> Stats:
        """The scheduler's state after its last step."""
        return self._scheduler.stats

    @property
    def healthy(self) -> bool:
        """Whether the scheduler's thread lives; paused is healthy."""
        return self._scheduler.alive

    async def checksums(self) -> dict[str, str]:
        """xxh3-128 of every tensor of the weights in use, by Hugging Face name."""
        weights = self._scheduler.weights
        return await asyncio.get_running_loop().run_in_executor(None, self._model.checksums, weights)

    def submit(self, requests: list[GenerateRequest]) -> Subscription:
        """Queue requests. Raises BadRequest when one's rid is in use."""
        rids = [request.rid for request in requests]
        taken = next((rid for rid in rids if rid in self._subscriptions), None)
        if taken is not None or len(set(rids)) < len(rids):
            raise BadRequest(f"rid {taken or 'given twice in a batch'} is in use: rids must be unique")
        subscription = Subscription(requests)
        for rid in rids:
            self._subscriptions[rid] = subscription
        self._scheduler.post(commands.Add(requests))
        return subscription

    def abort(self, rids: Iterable[str] | None) -> None:
        """End requests, or all; their last outputs come the usual way."""
        self._scheduler.post(commands.Abort(None if rids is None else tuple(rids)))

    def release(self, subscription: Subscription) -> None:
        """The caller went away: end what it left unfinished."""
        if subscription.unfinished:
            self.abort(subscription.unfinished)

    async def pause(self, mode: commands.PauseMode) -> commands.CommandReply:
        """Stop stepping, from the next step on."""
        return await self._done(commands.Pause(mode))

    async def resume(self) -> commands.CommandReply:
        """Step again."""
        return await self._done(commands.Continue())

    async def flush(self, *, when_idle: bool = False) -> commands.CommandReply:
        """Give back cache memory: now, or refused; or as soon as nothing runs."""
        return await self._done(commands.Flush(when_idle))

    async def release_memory(self, kinds: frozenset[str]) -> commands.CommandReply:
        """Free weights, cache or both, and return the pages to the system."""
        async with self._loading:
            answer = await self._done(commands.Release(kinds))
            if answer.success:
                if commands.WEIGHTS in kinds:
                    self._base = None
                await asyncio.get_running_loop().run_in_executor(None, _trim)
            return answer

    async def resume_memory(self, kinds: frozenset[str]) -> commands.CommandReply:
        """Allow what was released again; released weights are whatever is loaded next."""
        return await self._done(commands.Resume(kinds))

    async def set_version(self, version: str, *, abort_all: bool) -> commands.CommandReply:
        """Rename the weights in use."""
        return await self._done(commands.SetVersion(version, abort_all))

    async def load(
        self, path: Path, version: str | None, *, flush_cache: bool, abort_all: bool
    ) -> commands.CommandReply:
        """Read weights beside those in use, then swap. A directory that can't be used changes nothing."""
        async with self._loading:
            loop = asyncio.get_running_loop()
            try:
                weights = await loop.run_in_executor(None, self._read, path)
            except DataError as error:
                return commands.CommandReply(False, f"Failed to load the weights, the old ones stay: {error.message}")
            return await self._done(commands.Load(weights, str(path), version, flush_cache, abort_all))

    async def load_received(self, version: str, *, flush_cache: bool, abort_all: bool) -> commands.CommandReply:
        """Swap to what came by a process group since the update began, when that is a whole model."""
        async with self._loading:
            path, received = Path(self.stats.model_path), self.group.take()

            try:
                weights = await asyncio.get_running_loop().run_in_executor(None, self._model.build, path, received)
            except DataError as error:
                return commands.CommandReply(
                    False, f"Failed to use what was received, the old weights stay: {error.message}"
                )
            self._base = None
            return await self._done(commands.Load(weights, str(path), version, flush_cache, abort_all))

    async def _done(self, command: commands.ReplyCommand) -> commands.CommandReply:
        self._scheduler.post(command)
        return await asyncio.wrap_future(command.done)

    def _read(self, path: Path) -> Any:
        if (path / ADAPTER_CONFIG).is_file():
            if self._base is None:
                start = self.options.model_path
                self._base = self._model.build(start, read_tensors(start))
            return self._model.adapted(self._base, path)
        self._base = None  # or a copy of weights that nobody uses would stay in memory
        if (path / "config.json").is_file():
            config = replace(ModelConfig.from_dir(path), eos_token_ids=self.config.eos_token_ids)
            if config != self.config:
                raise DataError(f"{path} is another model than the one in use", fix="start an engine for that model")
        return self._model.build(path, read_tensors(path))

    def _deliver(self, outputs: list[Output]) -> None:
        """On the scheduler's thread: one crossing for all outputs of a step."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._dispatch, outputs)

    def _dispatch(self, outputs: list[Output]) -> None:
        for output in outputs:
            rid = output.request.rid
            subscription = self._subscriptions.get(rid)
            if subscription is None:
                continue
            if output.finish is not None:
                del self._subscriptions[rid]
            subscription.push(output)


def _trim() -> None:
    """Return freed memory to the system: the allocator keeps it otherwise."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _tokenizer(path: Path) -> Tokenizer | None:
    file = path / "tokenizer.json"
    return Tokenizer.from_file(str(file)) if file.is_file() else None
