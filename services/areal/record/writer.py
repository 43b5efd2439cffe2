"""Writer of the recording: a background thread with a bounded queue that appends frames to segment files.

Owns the promise that recording never harms a run: `offer` never blocks and never raises, and what can't be kept (a full
queue, a full disk, a failing volume) is dropped and counted. After a failure to write it tries again a minute later, in
a new segment. The oldest segments of its own name are deleted when they pass `keep_bytes`.

Which prompt groups are kept, within a budget of bytes a step, is sampled by a hash of their index, so that workers and
trainer agree without talking.
"""

import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from areal.observe.metrics import RoleMetrics
from areal.record.segment import SUFFIX, Header, pack

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
QUEUE_BYTES = 32 << 20  # of records that wait to be written
RETRY_S = 60.0  # after a failure to write
_FLUSH_S = 0.5  # how late a reader may see a record

Make = Callable[[], tuple[Header, bytes] | None]
"""Makes a record; None when there turned out to be none to write."""


class RecordWriter:
    """Appends records under `<directory>/<name>-<start>-<number>.rec`. One process writes a name at a time."""

    def __init__(
        self,
        directory: Path,
        name: str,
        metrics: RoleMetrics,
        *,
        keep_bytes: int,
        segment_bytes: int = SEGMENT_BYTES,
        queue_bytes: int = QUEUE_BYTES,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._name = name
        self._stamp = f"{time.time_ns():x}"
        self._metrics = metrics
        self._keep = keep_bytes
        self._segment_bytes = min(segment_bytes, max(1, keep_bytes // 4))
        self._queue_bytes = queue_bytes
        self._retry_s = retry_s
        self._clock = clock
        self._queue: deque[tuple[int, Make]] = deque()
        self._queued = 0
        self._changed = threading.Condition()
        self._closing = False
        self._file: BinaryIO | None = None
        self._number = 0
        self._failed_at: float | None = None
        self.dropped = 0  # records that are not kept
        for why in ("budget", "bug", "disk", "queue"):
            metrics.counter("areal_record_dropped_total", why=why)  # a rate needs the 0 before the first
        self._thread = threading.Thread(target=self._run, name=f"record {name}", daemon=True)
        self._thread.start()

    def offer(self, size: int, make: Make) -> bool:
        """Have `make()` called on the thread and its record written; `size` is about how much memory it holds.

        False when the queue is full: the record is dropped.
        """
        with self._changed:
            if self._closing or self._queued + size > self._queue_bytes:
                self.drop("queue")
                return False
            self._queued += size
            self._queue.append((size, make))
            if len(self._queue) == 1:
                self._changed.notify()
        return True

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is queued, for at most `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    # ---- on the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                batch, self._queue = self._queue, deque()
                self._queued, closing = 0, self._closing
            if batch:
                self._append([one for _, make in batch if (one := self._made(make)) is not None])
            elif closing:
                self._end_segment()
                return
            if not closing:
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, _FLUSH_S)  # many records, one write

    def _made(self, make: Make) -> bytes | None:
        try:
            made = make()
            return pack(*made) if made is not None else None
        except Exception:  # a record that can't be made is a bug of ours, and no reason to end a run
            log.exception("a record could not be made")
            self.drop("bug")
            return None

    def _append(self, records: list[bytes]) -> None:
        if self._failed_at is not None and self._clock() - self._failed_at < self._retry_s:
            self.drop("disk", len(records))
            return
        try:
            for record in records:
                file = self._segment(len(record))
                file.write(record)
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            if self._failed_at is None:
                log.error("recording: %s; it is tried again every %.0f s", error, self._retry_s)
            self._failed_at = self._clock()
            self._end_segment()
            self.drop("disk", len(records))
            return
        self._failed_at = None
        self._metrics.counter("areal_record_bytes_total").inc(sum(map(len, records)))

    def _segment(self, more: int) -> BinaryIO:
        """The open segment, or a new one when the next record would not fit."""
        if self._file is not None and self._file.tell() + more <= self._segment_bytes:
            return self._file
        self._end_segment()
        self._retain(more)
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{self._name}-{self._stamp}-{self._number:06d}{SUFFIX}"
        self._number += 1
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # prompts and answers may be private
        self._file = os.fdopen(descriptor, "wb")
        return self._file

    def _end_segment(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                log.warning("closing a segment: %s", error)

    def _retain(self, more: int) -> None:
        """Delete the oldest segments of this name until a new one fits."""
        mine = sorted(self._directory.glob(f"{self._name}-*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
        total = sum(path.stat().st_size for path in mine) + max(more, self._segment_bytes)
        for path in mine:
            if total <= self._keep:
                return
            total -= path.stat().st_size
            path.unlink(missing_ok=True)

    def drop(self, why: str, count: int = 1) -> None:
        """Count records that are not kept."""
        self.dropped += count
        self._metrics.counter("areal_record_dropped_total", why=why).inc(count)


_MIX = 0x9E3779B97F4A7C15  # 2⁶⁴/φ: neighbours fall far apart
_PER_TOKEN = 24  # bytes that a token takes in memory with its text, about: for budget and queue
_PER_SAMPLE = 512
_STEPS_OPEN = 256  # steps whose bytes are remembered; more are never in work at once


def in_share(group: int, share: float) -> bool:
    """Whether a group belongs to the part `share` (0 to 1) of all groups."""
    return ((group + 1) * _MIX % 2**64) / 2**64 < share


def sample_size(tokens: int) -> int:
    """About how many bytes the record of a sample of so many tokens takes."""
    return _PER_SAMPLE + _PER_TOKEN * tokens


class StepBudget:
    """Bytes kept by step. A record that would pass the budget is not kept; the next step begins anew."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._spent: OrderedDict[int, int] = OrderedDict()

    def take(self, step: int, size: int) -> bool:
        """Whether a record of about `size` bytes of `step` is still within the budget; it is then counted."""
        spent = self._spent.get(step, 0)
        if spent + size > self._budget:
            return False
        self._spent[step] = spent + size
        while len(self._spent) > _STEPS_OPEN:
            self._spent.popitem(last=False)
        return True
