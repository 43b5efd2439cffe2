"""The running batch as arrays: row i of every array belongs to the request whose cache is row i.

Rows are dense from 0 between steps. Vectorised so that a step costs the same Python for one request as for 256.
It knows nothing of the model or of waiting requests.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal.engine.request import GenerateRequest, Matcher, Output
from areal.engine.sampling import Choice

NO_TOKEN = -1  # fills unused stop slots; no id is negative


class Running:
    """A request that was admitted at least once, with what it made before its last interruption."""

    __slots__ = (
        "input_logprobs", "input_tops", "made_ids", "made_logprobs", "marks", "prefix", "request", "retractions",
        "route_bytes", "routed", "routes", "row",
    )  # fmt: skip

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.row = -1  # -1 while it waits
        self.made_ids: NDArray[np.int64] = np.empty(0, np.int64)
        self.made_logprobs: NDArray[np.float32] = np.empty(0, np.float32)
        self.marks: list[tuple[str, int]] = []  # (version, first token it made)
        self.retractions = 0
        self.input_logprobs: list[float] | None = None
        self.input_tops: list[tuple[int, float]] | None = None
        self.prefix = b""
        self.routes = bytearray()  # of the tokens so far but the last; it only grows
        self.routed = self.route_bytes = 0  # rows, and bytes of each

    def mark(self, version: str, made: int) -> None:
        """Tokens from `made` on are of `version`."""
        if self.marks and self.marks[-1][1] == made:
            self.marks.pop()
        if not self.marks or self.marks[-1][0] != version:
            self.marks.append((version, made))

    def add_routes(self, rows: NDArray[np.uint8], first: int) -> None:
        """Rows of the tokens from `first` on. What is there already stays: a token's are those it was followed by."""
        if self.request.return_routes:
            fresh = rows[self.routed - first :]
            self.routes += fresh.tobytes()
            self.routed, self.route_bytes = self.routed + len(fresh), rows.shape[1]

    def spans(self, made: int) -> list[tuple[str, int, int]]:
        """Half-open spans of the first `made` tokens."""
        ends = [*(start for _, start in self.marks[1:]), made]
        return [(version, start, end) for (version, start), end in zip(self.marks, ends, strict=False) if end > start]

    def output(
        self, ids: NDArray[np.int64], logprobs: NDArray[np.float32], version: str, finish: dict[str, Any] | None
    ) -> Output:
        """All that it made, which is `ids` and their log-probabilities."""
        return Output(
            request=self.request,
            output_ids=ids.tolist(),
            logprobs=logprobs.tolist(),
            spans=self.spans(len(ids)),
            weight_version=version,
            finish=finish,
            retractions=self.retractions,
            input_logprobs=self.input_logprobs,
            input_tops=self.input_tops,
            routes=self.routes,
            route_bytes=self.route_bytes,
        )


class RunningRows:
    """Arrays of up to `limit` running requests."""

    def __init__(self, limit: int) -> None:
        self.running: list[Running | None] = []
        self.token = np.zeros(limit, np.int64)  # the last token, which the next step feeds
        self.position = np.zeros(limit, np.int64)  # and its position
        self.shift = np.zeros(limit, np.int64)  # of positions, behind images
        self.made = np.zeros(limit, np.int64)
        self.limit = np.zeros(limit, np.int64)
        self.minimum = np.zeros(limit, np.int64)
        self.interval = np.zeros(limit, np.int64)  # 0: not streamed
        self.sent = np.zeros(limit, np.int64)
        self.seed = np.zeros(limit, np.uint64)
        self.temperature = np.ones(limit, np.float32)
        self.top_k = np.full(limit, -1, np.int64)
        self.top_p = np.ones(limit, np.float32)
        self.min_p = np.zeros(limit, np.float32)
        self.stops = np.full((limit, 4), NO_TOKEN, np.int64)
        self.has_text_stop = np.zeros(limit, np.bool_)
        self.has_matcher = np.zeros(limit, np.bool_)
        self.ids = np.zeros((limit, 32), np.int64)
        self.logprobs = np.zeros((limit, 32), np.float32)

    @property
    def count(self) -> int:
        """Rows in use, holes included."""
        return len(self.running)

    def place(self, row: int, item: Running, stops: tuple[int, ...]) -> None:
        """Put a request into a row (a hole, or the next one), ready to make its next token."""
        if row == len(self.running):
            self.running.append(item)
        else:
            self.running[row] = item
        item.row = row
        sampling, made = item.request.sampling, len(item.made_ids)
        self._widen(sampling.max_new_tokens, len(stops))
        self.token[row] = item.made_ids[-1] if made else item.request.input_ids[-1]
        self.position[row] = len(item.request.input_ids) + made - 1
        self.shift[row] = item.request.shift
        self.made[row] = made
        self.limit[row] = sampling.max_new_tokens
        self.minimum[row] = sampling.min_new_tokens
        self.interval[row] = sampling.stream_interval if item.request.stream else 0
        self.sent[row] = made
        self.seed[row] = sampling.seed
        self.temperature[row] = sampling.temperature
        self.top_k[row], self.top_p[row], self.min_p[row] = sampling.top_k, sampling.top_p, sampling.min_p
        self.stops[row] = NO_TOKEN
        self.stops[row, : len(stops)] = stops
        self.has_text_stop[row] = bool(sampling.stop)
        self.has_matcher[row] = item.request.matcher is not None
        self.ids[row, :made] = item.made_ids
        self.logprobs[row, :made] = item.made_logprobs

    def choice(self) -> Choice:
        """How the rows in use choose their next token."""
        n = self.count
        return Choice(
            self.seed[:n], self.position[:n] + 1, self.temperature[:n], self.top_k[:n], self.top_p[:n], self.min_p[:n]
        )

    def matchers(self) -> list[tuple[int, Matcher]]:
        """Rows whose tokens a grammar decides."""
        rows = np.flatnonzero(self.has_matcher[: self.count]).tolist()
        items = ((row, self.running[row]) for row in rows)
        return [(row, item.request.matcher) for row, item in items if item and item.request.matcher]

    def append(self, tokens: NDArray[np.int64], logprobs: NDArray[np.float32]) -> None:
        """One token more for each row."""
        n = self.count
        order = np.arange(n)
        self.ids[order, self.made[:n]] = tokens
        self.logprobs[order, self.made[:n]] = logprobs
        self.token[:n] = tokens
        self.position[:n] += 1
        self.made[:n] += 1

    def add_routes(self, rows: NDArray[np.uint8]) -> None:
        """Of the tokens that the step was fed, [count, row]. Before `append`."""
        for row, item in enumerate(self.running):
            if item is not None:
                item.add_routes(rows[row : row + 1], int(self.position[row]))

    def stopped(self) -> NDArray[np.bool_]:
        """Rows whose last token ends them by itself. [count]"""
        n = self.count
        return np.asarray((self.stops[:n] == self.token[:n, None]).any(-1))

    def due(self) -> NDArray[np.bool_]:
        """Streamed rows with an interval's worth of unsent tokens. [count]"""
        n = self.count
        return np.asarray((self.interval[:n] > 0) & (self.made[:n] - self.sent[:n] >= self.interval[:n]))

    def output(self, row: int, version: str, finish: dict[str, Any] | None, drop: int = 0) -> Output:
        """What a row made so far, without its last `drop` tokens."""
        item = self.running[row]
        assert item is not None
        made = int(self.made[row]) - drop
        self.sent[row] = made
        return item.output(self.ids[row, :made], self.logprobs[row, :made], version, finish)

    def save(self, row: int) -> Running:
        """Copy what a row made back into its request and leave a hole."""
        item = self.vacate(row)
        made = int(self.made[row])
        item.made_ids = self.ids[row, :made].copy()
        item.made_logprobs = self.logprobs[row, :made].copy()
        return item

    def vacate(self, row: int) -> Running:
        """Leave a hole where a request was."""
        item = self.running[row]
        assert item is not None
        self.running[row] = None
        item.row = -1
        return item

    def holes(self) -> list[int]:
        """Rows without a request, lowest first."""
        return [row for row, item in enumerate(self.running) if item is None]

    def compact(self) -> tuple[list[int], list[int]]:
        """Close all holes by moving the last rows into them; returns the moves for the cache."""
        source: list[int] = []
        target: list[int] = []
        for hole in self.holes():
            while self.running and self.running[-1] is None:
                self.running.pop()
            if hole >= len(self.running):
                break
            last = len(self.running) - 1
            item = self.running.pop()
            assert item is not None
            self.running[hole] = item
            item.row = hole
            source.append(last)
            target.append(hole)
        if source:
            for array in vars(self).values():
                if isinstance(array, np.ndarray):
                    array[target] = array[source]
        return source, target

    def _widen(self, made: int, stops: int) -> None:
        """Grow the second dimension of the arrays that have one."""
        if made > self.ids.shape[1]:
            width = 1 << (made - 1).bit_length()
            self.ids = _wider(self.ids, width, 0)
            self.logprobs = _wider(self.logprobs, width, 0)
        if stops > self.stops.shape[1]:
            self.stops = _wider(self.stops, stops, NO_TOKEN)


def _wider(array: NDArray[Any], width: int, fill: int) -> NDArray[Any]:
    wide = np.full((array.shape[0], width), fill, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide
