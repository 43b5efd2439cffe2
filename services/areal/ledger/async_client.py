"""The ledger's client for asyncio: the controller's and the workers' operations.

Owns the connection and its retries; what an operation means is `LedgerModel`'s, how it is written `calls`'. A call
answers, or raises `FencedError` (stop), `InfraError` (the store is away or full) or `ConfigError` (wrong login). It
never buffers a write.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis import exceptions as redis_errors
from redis.asyncio import Redis, SSLConnection
from redis.asyncio.retry import Retry

from areal import tls
from areal.ledger.calls import Calls, LedgerCall
from areal.ledger.connection import PASSING, RETRY_FOR_S, Patience, no_retry, settings, shown, typed
from areal.ledger.values import AddResult, CloseResult, LedgerSnapshot, NewSample, SampleMeta

log = logging.getLogger(__name__)

T = TypeVar("T")

SCAN_PAGE = 256
"""Groups a page: a few milliseconds of Redis' only thread."""

PIPELINE_BYTES = 4 << 20
"""Payload bytes a pipeline may carry before it is sent: a long one would hold up other clients."""

RENEW_S = 60.0


class _FreshCertificate(SSLConnection):
    """Reads the files of the certificate at each connection, as redis-py's blocking client does."""

    def _connection_arguments(self) -> Any:
        self.ssl_context.context = None
        return super()._connection_arguments()


class AsyncLedger:
    """One connection pool to the ledger of one job."""

    def __init__(
        self,
        address: str,
        job: str,
        *,
        username: str | None = None,
        password: str | None = None,
        retry_for_s: float = RETRY_FOR_S,
    ) -> None:
        self._address = shown(address)
        self._retry_for_s = retry_for_s
        self._calls = Calls(job)
        self._redis: Any = Redis(**settings(address, username, password, no_retry(Retry)))
        self._own = tls.tls_dir() if "://" not in address else None
        if self._own is not None:
            self._redis.connection_pool.connection_class = _FreshCertificate

    async def __aenter__(self) -> "AsyncLedger":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_connection()

    async def close_connection(self) -> None:
        """Gives the connections back."""
        await self._redis.aclose()

    # ---- worker

    async def add_sample(self, group: int, index: int, payload: bytes, meta: SampleMeta) -> AddResult:
        """Stores a sample once; a duplicate answers with the meta that counts."""
        return await self._run(self._calls.add_sample(NewSample(group, index, payload, meta)))

    async def add_samples(self, samples: Sequence[NewSample]) -> list[AddResult]:
        """`add_sample` for each, in one round trip where they are small."""
        results: list[AddResult] = []
        page: list[LedgerCall[AddResult]] = []
        held = 0
        for sample in samples:
            page.append(self._calls.add_sample(sample))
            held += len(sample.payload)
            if held >= PIPELINE_BYTES:
                results += await self._run_all(page)
                page, held = [], 0
        return results + await self._run_all(page)

    # ---- controller

    async def claim(self, fence: int) -> None:
        """A controller starts: older ones are refused from now on."""
        await self._run(self._calls.claim(fence))

    async def close(
        self, fence: int, group: int, outcome: str, group_size: int, at_least: int | None = None
    ) -> CloseResult:
        """Ends the generation of a group: "complete" or the reason of a tombstone. See `LedgerModel.close`."""
        return await self._run(self._calls.close(fence, group, outcome, group_size, at_least))

    async def assign(self, fence: int, step: int, groups: Sequence[int]) -> None:
        """These groups make the batch of `step`, for ever. See `LedgerModel.assign`."""
        await self._run(self._calls.assign(fence, step, groups))

    async def advance(self, fence: int, low: int) -> None:
        """Every group below `low` has ended: nothing is kept of them any more."""
        await self._run(self._calls.advance(fence, low))

    async def reopen(self, fence: int, group: int) -> bool:
        """Takes a closed group that has no gradient back to admitted, without samples. Says if it was closed."""
        return await self._run(self._calls.reopen(fence, group))

    async def scan(self, upto: int | None = None) -> LedgerSnapshot:
        """What is held. Samples are looked for in groups from the low watermark to `upto`, or by listing all keys.

        Pages follow one another: what changes meanwhile may be seen or not.
        """
        run_id = await self.run_id()
        meta = await self._retry(lambda: self._redis.hgetall(self._calls.meta))
        closed = await self._retry(lambda: self._redis.hgetall(self._calls.closed))
        batches = await self._retry(lambda: self._redis.hgetall(self._calls.batches))
        low = int(meta.get(b"low", 0))
        groups = list(range(low, upto)) if upto is not None else await self._retry(self._held)
        samples: dict[int, dict[int, SampleMeta]] = {}
        held = 0
        for start in range(0, len(groups), SCAN_PAGE):
            for group, size, metas in await self._run(self._calls.scan(groups[start : start + SCAN_PAGE])):
                samples[group] = metas
                held += size
        return LedgerSnapshot(
            low=low,
            committed=int(meta.get(b"committed", 0)),
            closed={int(group): outcome.decode() for group, outcome in closed.items()},
            samples=samples,
            batches={int(step): tuple(map(int, groups.split(b","))) for step, groups in batches.items()},
            bytes=held,
            trainer_fence=int(meta.get(b"trainer_fence", 0)),
            controller_fence=int(meta.get(b"controller_fence", 0)),
            run_id=run_id,
        )

    # ---- anyone

    async def run_id(self) -> str:
        """Redis' own name for its current life: when it changes, the store restarted and may have lost its tail."""
        info = await self._retry(lambda: self._redis.info("server"))
        return str(info["run_id"])

    async def committed(self) -> int:
        """The low watermark: samples of groups below it may be dropped."""
        low = await self._retry(lambda: self._redis.hget(self._calls.meta, "low"))
        return int(low or 0)

    async def keep_certificate_fresh(self, period_s: float = RENEW_S) -> None:
        """Have Redis read its certificate again and again, for ever: by itself it reads it once. Its path is ours."""
        files = {"cert": tls.CERTIFICATE_FILE, "key": tls.KEY_FILE, "ca-cert": tls.CA_FILE}
        while self._own is not None:
            await asyncio.sleep(period_s)
            asked = [part for kind, file in files.items() for part in (f"tls-{kind}-file", str(self._own / file))]
            try:
                await self._redis.config_set(*asked)
            except (redis_errors.RedisError, OSError) as error:  # half of the files are new: the next look finds all
                log.warning("Redis goes on with its old certificate: %s", error)

    # ---- how

    async def _held(self) -> list[int]:
        prefix = self._calls.samples_prefix
        keys = {key async for key in self._redis.scan_iter(match=f"{prefix}*", count=1000)}
        return sorted(int(key[len(prefix) :]) for key in keys)

    async def _run(self, call: LedgerCall[T]) -> T:
        return call.read(await self._answer(call))

    async def _run_all(self, calls: Sequence[LedgerCall[T]]) -> list[T]:
        answers = await self._answer_all(calls)
        for answer in answers:
            if isinstance(answer, Exception):
                raise typed(answer, self._address) from answer
        return [call.read(answer) for call, answer in zip(calls, answers, strict=True)]

    async def _answer(self, call: LedgerCall[Any]) -> Any:
        async def once() -> Any:
            try:
                return await self._redis.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
            except redis_errors.NoScriptError:
                return await self._redis.eval(call.script.text, len(call.keys), *call.keys, *call.args)

        return await self._retry(once)

    async def _answer_all(self, calls: Sequence[LedgerCall[Any]]) -> list[Any]:
        """All calls in one pipeline. A Redis that doesn't know the script yet learns it from the first, then gets the
        rest.
        """
        if not calls:
            return []

        async def once() -> list[Any]:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for call in calls:
                    pipeline.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
                answers: list[Any] = await pipeline.execute(raise_on_error=False)
            for answer in answers:
                if isinstance(answer, PASSING):
                    raise answer
            return answers

        answers: list[Any] = await self._retry(once)
        unknown = [i for i, answer in enumerate(answers) if isinstance(answer, redis_errors.NoScriptError)]
        if unknown:
            answers[unknown[0]] = await self._answer(calls[unknown[0]])
            for i, answer in zip(unknown[1:], await self._answer_all([calls[i] for i in unknown[1:]]), strict=True):
                answers[i] = answer
        return answers

    async def _retry(self, once: Callable[[], Awaitable[Any]]) -> Any:
        patience = Patience(self._address, time.monotonic, self._retry_for_s)
        while True:
            try:
                return await once()
            except (redis_errors.RedisError, OSError) as error:
                await asyncio.sleep(patience.pause_s(error))
