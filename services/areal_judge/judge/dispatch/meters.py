"""Prometheus metrics of the dispatcher. Labels hold words of ours only, never what a caller sends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from areal.errors import ArealError
from areal.observe.metrics import RoleMetrics

from areal_judge.judge.dispatch.scheduler import SlotScheduler
from areal_judge.judge.dispatch.values import ExecutionResult, Priority
from areal_judge.judge.values import Flag, Judgement
from areal_judge.sandbox.values import Tier

_RECENT = 0.98  # a second: by this the memory peak fades, to half in about half a minute


class Meters:
    """Counts. `languages` are those that may become labels."""

    def __init__(self, metrics: RoleMetrics, languages: frozenset[str]) -> None:
        self._metrics = metrics
        self._languages = languages
        self._seen: dict[str, float] = {}
        self._peak_bytes = 0.0
        for flag in Flag:  # from 0: a rate can't see the first of a series that begins at 1
            metrics.counter("areal_sandbox_flags_total", flag=flag.value)
        metrics.counter("areal_sandbox_retries_total")
        self.suites(0)

    @classmethod
    def unserved(cls) -> "Meters":
        """Counts for nobody."""
        return cls(RoleMetrics("reward", "unserved"), frozenset())

    def judged(self, judgement: Judgement, language: str, priority: Priority) -> None:
        """One judgement left the service."""
        metrics, timing = self._metrics, judgement.timing
        metrics.counter(
            "areal_sandbox_judgements_total",
            status=judgement.status.value.lower(),
            language=self._known(language),
            tier=judgement.tier.name,
        ).inc()
        for flag in judgement.flags:
            metrics.counter("areal_sandbox_flags_total", flag=flag.value).inc()
        if judgement.score is None:
            return
        metrics.histogram("areal_sandbox_wait_seconds", priority=priority.name.lower()).observe(timing.queued_s)
        for phase in ("setup", "compile", "run", "judge"):
            seconds = getattr(timing, f"{phase}_s")
            if seconds:
                metrics.histogram("areal_sandbox_phase_seconds", phase=phase).observe(seconds)
        self._peak_bytes = max([self._peak_bytes, *(case.max_rss_bytes for case in judgement.cases)])

    def executed(self, executed: ExecutionResult, language: str, priority: Priority, tier: Tier) -> None:
        """One execution left the service."""
        self._metrics.counter(
            "areal_sandbox_executions_total",
            status=executed.status.value.lower(),
            language=self._known(language),
            tier=tier.name,
        ).inc()
        if executed.ended is not None:
            wait = self._metrics.histogram("areal_sandbox_wait_seconds", priority=priority.name.lower())
            wait.observe(executed.queued_s)

    def retried(self) -> None:
        """The sandbox failed; it is tried once more."""
        self._metrics.counter("areal_sandbox_retries_total").inc()

    def suites(self, held_bytes: int) -> None:
        """Suites were uploaded."""
        self._metrics.gauge("areal_sandbox_suites_bytes").set(held_bytes)

    def tested(self, tier: Tier, ready: bool) -> None:
        """The self-test came to an end."""
        self._metrics.gauge("areal_sandbox_tier").set(int(tier))
        self._metrics.gauge("areal_sandbox_ready").set(float(ready))

    def sample(
        self, scheduler: SlotScheduler, now: float, counts: Mapping[str, float], kills: Mapping[str, float]
    ) -> None:
        """What only a look shows: called every second. `counts` and `kills` only grow.

        Args:
            counts: of `runs`, `zygote_restarts`, `spare_misses` since the sandbox started.
            kills: by reason.
        """
        metrics = self._metrics
        metrics.gauge("areal_sandbox_slots").set(scheduler.slots)
        metrics.gauge("areal_sandbox_running").set(scheduler.running)
        ages = scheduler.queue.ages_s(now)
        for priority, depth in scheduler.queue.depths().items():
            metrics.gauge("areal_sandbox_queue_depth", priority=priority.name.lower()).set(depth)
            metrics.gauge("areal_sandbox_queue_age_seconds", priority=priority.name.lower()).set(ages[priority])
        metrics.counter("areal_sandbox_runs_total").inc(self._grown("runs", counts))
        metrics.counter("areal_sandbox_zygote_restarts_total").inc(self._grown("zygote_restarts", counts))
        metrics.counter("areal_sandbox_spare_misses_total").inc(self._grown("spare_misses", counts))
        for reason in kills:
            metrics.counter("areal_sandbox_kills_total", reason=reason).inc(self._grown(reason, kills, "kills."))
        metrics.gauge("areal_sandbox_memory_peak_bytes").set(self._peak_bytes)
        self._peak_bytes *= _RECENT

    def _grown(self, name: str, counts: Mapping[str, float], prefix: str = "") -> float:
        now = float(counts.get(name, 0.0))
        before = self._seen.get(prefix + name, 0.0)
        self._seen[prefix + name] = now
        return max(0.0, now - before)

    def _known(self, language: str) -> str:
        return language if language in self._languages else "other"


# ---- Readiness probe: runs the self-test at the start and again and again, and keeps its newest outcome


log = logging.getLogger(__name__)

PERIOD_S = 60.0
AFTER_FAILURE_S = 5.0
TEST_S = 30.0  # a self-test that takes longer has failed


@dataclass(frozen=True)
class SelfTestFinding:
    """The outcome of one self-test."""

    passed: bool
    words: str
    breach: bool = False  # an attack won: nothing more may run


class Readiness:
    """Tests, remembers, and tells whoever wants to know when it changes."""

    def __init__(
        self,
        test: Callable[[], Awaitable[SelfTestFinding]],
        changed: Callable[[bool], Awaitable[None]],
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        self._test = test
        self._changed = changed
        self._period_s = period_s
        self.ready = False
        self.breached = False
        self.words = "the self-test has not run yet"

    async def check(self) -> bool:
        """Tests once; whether it passed."""
        try:
            tested = await asyncio.wait_for(self._test(), TEST_S)
        except TimeoutError:
            tested = SelfTestFinding(False, f"the self-test was not over after {TEST_S:g} s")
        except ArealError as error:
            tested = SelfTestFinding(False, f"the self-test could not run: {error.message}")
        except Exception as error:
            log.exception("the self-test failed")
            tested = SelfTestFinding(False, f"the self-test failed: {type(error).__name__}: {error}")
        if tested.passed != self.ready:
            log.log(logging.INFO if tested.passed else logging.ERROR, "self-test: %s", tested.words)
        self.ready, self.words, self.breached = tested.passed, tested.words, tested.breach
        await self._changed(self.ready)
        return self.ready

    async def keep(self) -> None:
        """Tests until cancelled."""
        while True:
            await asyncio.sleep(self._period_s if self.ready else min(AFTER_FAILURE_S, self._period_s))
            await self.check()
