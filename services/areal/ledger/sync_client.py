"""The ledger's client for the trainer: recover, take, wait, commit.

Owns the connection, its retries, and the trainer's part in healing the store: when Redis comes back as another process
it may have forgotten a `recover`, so the last one is repeated before anything is read. What an operation means is
`LedgerModel`'s. A call answers, or raises `FencedError` (stop), `InfraError` (the store is away) or `ConfigError`
(wrong login).
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from redis import Redis
from redis import exceptions as redis_errors
from redis.retry import Retry

from areal.ledger.calls import Calls, LedgerCall, lost_samples, read_group
from areal.ledger.connection import RETRY_FOR_S, Patience, no_retry, settings, shown
from areal.ledger.values import COMPLETE, TakenGroup

T = TypeVar("T")

FETCH_GROUPS = 16
"""Groups whose payloads one round trip brings: 16 groups of 16 long samples are 55 MB."""

WAIT_SLICE_S = 0.5
"""A blocked read returns this often, to see a Redis that restarted."""

TAKE_TRIES = 3
"""A group may be tombstoned between its marker and its samples being read, but not again and again."""

SWEEP_PAGE = 1000


@dataclass(slots=True)
class _Standing:
    """What this trainer asserted last, to be repeated to a store that lost its tail."""

    fence: int
    step: int
    run_id: str


class SyncLedger:
    """One connection pool to the ledger of one job. Its methods may be called from several threads."""

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
        self._standing: _Standing | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> "SyncLedger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close_connection()

    def close_connection(self) -> None:
        """Gives the connections back."""
        self._redis.close()

    def reach(self, patience_s: float) -> None:
        """Return as soon as the store answers. Raises InfraError when it doesn't within `patience_s`."""
        self._retry(self._redis.ping, patience_s)

    def recover(self, fence: int, step: int) -> None:
        """A trainer starts from a checkpoint of `step`. See `LedgerModel.recover`."""
        with self._lock:
            run_id = self.run_id()
            self._run(self._calls.recover(fence, step))
            self._sweep(fence)
            self._standing = _Standing(fence, step, run_id)

    def take(self, fence: int, step: int) -> list[TakenGroup]:
        """The batch of `step`, tombstones in it included; nothing is taken away.

        Nothing while the batch isn't chosen or whole. Asking again gives the same groups again.
        """
        self._heal()
        gone: int | None = None
        for _ in range(TAKE_TRIES):
            taken, gone = self._fetch(self._run(self._calls.take(fence, step)))
            if gone is None:
                return taken
        raise lost_samples(-1 if gone is None else gone)

    def peek(self, groups: Sequence[int]) -> list[TakenGroup]:
        """See `LedgerModel.peek`."""
        taken: list[TakenGroup] = []
        for group in groups:
            taken += [one for one in self._fetch([(group, COMPLETE)])[0] if one.payloads]
        return taken

    def wait_ready(self, fence: int, step: int, timeout_s: float) -> bool:
        """Waits until `take(step)` has something; False when the time is over."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._heal()
            newest = self._retry(lambda: self._redis.xrevrange(self._calls.ready, count=1))
            if self._run(self._calls.take(fence, step)):
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            after = {self._calls.ready: newest[0][0] if newest else "0-0"}
            block_ms = max(1, int(min(remaining, WAIT_SLICE_S) * 1000))  # until the stream grows, at most so long
            self._retry(partial(self._redis.xread, after, count=1, block=block_ms))

    def commit(self, fence: int, step: int) -> int:
        """A checkpoint holds the batches of the steps below `step`: frees them. Returns the steps committed."""
        with self._lock:
            if self._standing is not None:
                self._standing.step = max(self._standing.step, step)
            self._heal()
            return self._run(self._calls.commit(fence, step))

    def run_id(self) -> str:
        """Redis' own name for its current life: when it changes, the store restarted and may have lost its tail."""
        return str(self._retry(lambda: self._redis.info("server"))["run_id"])

    # ---- how

    def _heal(self) -> None:
        """Repeats the last `recover` to a Redis that is not the one it was told to."""
        with self._lock:
            standing = self._standing
            if standing is not None and (run_id := self.run_id()) != standing.run_id:
                self._run(self._calls.recover(standing.fence, standing.step))
                standing.run_id = run_id

    def _fetch(self, markers: list[tuple[int, str]]) -> tuple[list[TakenGroup], int | None]:
        """The samples of taken groups, and the first group that lost them since its marker was read."""
        taken: list[TakenGroup] = []
        for start in range(0, len(markers), FETCH_GROUPS):
            page = markers[start : start + FETCH_GROUPS]
            wanted = [self._calls.samples(group) for group, outcome in page if outcome == COMPLETE]
            answers = iter(self._retry(partial(self._read_all, wanted)))
            for group, outcome in page:
                fields = next(answers) if outcome == COMPLETE else {}
                taken.append(read_group(group, outcome, fields))
                if outcome == COMPLETE and not taken[-1].payloads:
                    return taken, group
        return taken, None

    def _read_all(self, keys: list[str]) -> list[dict[bytes, bytes]]:
        with self._redis.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.hgetall(key)
            answers: list[dict[bytes, bytes]] = pipeline.execute()
        return answers

    def _sweep(self, fence: int) -> None:
        """Removes samples below the low watermark that came back from somewhere."""
        prefix = self._calls.samples_prefix
        low = int(self._retry(lambda: self._redis.hget(self._calls.meta, "low")) or 0)
        keys = self._retry(lambda: list(self._redis.scan_iter(match=f"{prefix}*", count=1000)))
        groups = sorted(group for group in {int(key[len(prefix) :]) for key in keys} if group < low)
        for start in range(0, len(groups), SWEEP_PAGE):
            self._run(self._calls.sweep(fence, groups[start : start + SWEEP_PAGE]))

    def _run(self, call: LedgerCall[T]) -> T:
        def once() -> Any:
            try:
                return self._redis.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
            except redis_errors.NoScriptError:
                return self._redis.eval(call.script.text, len(call.keys), *call.keys, *call.args)

        return call.read(self._retry(once))

    def _retry(self, once: Callable[[], Any], patience_s: float | None = None) -> Any:
        patience = Patience(self._address, time.monotonic, self._retry_for_s if patience_s is None else patience_s)
        while True:
            try:
                return once()
            except (redis_errors.RedisError, OSError) as error:
                time.sleep(patience.pause_s(error))
