"""Engine statistics: a snapshot between two steps, and the counters behind it."""

import time
from dataclasses import dataclass

RATE_WINDOW_S = 1.0  # short enough for routing by load, long enough to smooth single steps


@dataclass(frozen=True)
class Stats:
    """A consistent picture between two steps."""

    weight_version: str
    model_path: str
    paused: bool = False
    running: int = 0
    waiting: int = 0
    used_tokens: int = 0
    steps: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    requests: int = 0
    aborted: int = 0
    retracted: int = 0
    gen_throughput: float = 0.0  # tokens a second over the last window


class Meter:
    """Counts what happened since the start. Owned by the scheduler's thread."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._tokens_then = 0
        self._throughput = 0.0
        self.steps = 0
        self.tokens = 0
        self.prompt_tokens = 0
        self.requests = 0
        self.aborted = 0
        self.retracted = 0

    def picture(self, version: str, path: str, *, paused: bool, running: int, waiting: int, used_tokens: int) -> Stats:
        """The counts as of now."""
        now = time.monotonic()
        if now - self._since > RATE_WINDOW_S:
            self._throughput = (self.tokens - self._tokens_then) / (now - self._since)
            self._since, self._tokens_then = now, self.tokens
        return Stats(
            version,
            path,
            paused=paused,
            running=running,
            waiting=waiting,
            used_tokens=used_tokens,
            steps=self.steps,
            generated_tokens=self.tokens,
            prompt_tokens=self.prompt_tokens,
            requests=self.requests,
            aborted=self.aborted,
            retracted=self.retracted,
            gen_throughput=self._throughput if running else 0.0,
        )
