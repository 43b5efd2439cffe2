"""Request pipeline: tier check, bounded queue, slot, judge or executor.

Promises that every call ends with an answer by its deadline (`calls`); that only a status of the program carries a
score; that a call that is cancelled ends its run; that a sandbox which failed is tried once more, and a program that
ran into a limit never (`attempts`).
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from areal.errors import DataError

from areal_judge.judge.dispatch.admission import Bounds, MemoryBudget
from areal_judge.judge.dispatch.attempts import attempted
from areal_judge.judge.dispatch.calls import PendingCalls
from areal_judge.judge.dispatch.executor import Executor
from areal_judge.judge.dispatch.meters import Meters
from areal_judge.judge.dispatch.offer import Offer
from areal_judge.judge.dispatch.scheduler import QueuePlace, SlotScheduler
from areal_judge.judge.dispatch.suite_store import StoredSuite, SuiteStore
from areal_judge.judge.dispatch.values import Execution, ExecutionResult, RefusedError, RequestOverrides, Ticket
from areal_judge.judge.judge import Judge
from areal_judge.judge.languages.table import COMPILE_LIMITS, LANGUAGES, language_of
from areal_judge.judge.languages.toolchains import run_limits
from areal_judge.judge.validation import validate, validate_limits
from areal_judge.judge.values import AssertSuite, Judgement, Options, Status, StdioCase, StdioSuite, Submission, Suite
from areal_judge.sandbox.values import Limits, Tier

GUARD_S = 30.0  # beyond all limits of a request: a judge that takes longer is broken
COMPILE_S = 20.0


class JudgeDispatcher:
    """Judges and executes for many callers. Lives on one event loop."""

    def __init__(
        self,
        judge: Judge,
        *,
        offer: Offer,
        slots: int,
        memory: MemoryBudget,
        executor: Executor | None = None,
        bounds: Bounds = Bounds(),  # noqa: B008 - frozen
        meters: Meters | None = None,
        suites: SuiteStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.offer = offer
        self.refusing = ""  # why nothing may run now: the sandbox was seen to leak
        self.scheduler = SlotScheduler(slots, memory, bounds=bounds, clock=clock)
        self.meters = meters or Meters.unserved()
        self._judge = judge
        self._executor = executor
        self._suites = suites if suites is not None else SuiteStore()
        self._clock = clock
        self._wall = wall
        self._calls = PendingCalls(wall)

    @property
    def slots(self) -> int:
        """How many requests run at once."""
        return self.scheduler.slots

    async def judge(
        self,
        submission: Submission,
        suite: Suite | StoredSuite | str,
        options: Options = Options(),  # noqa: B008 - frozen
        ticket: Ticket = Ticket(),  # noqa: B008 - frozen
        overrides: RequestOverrides = RequestOverrides(),  # noqa: B008 - frozen
    ) -> Judgement:
        """Judges a submission by a suite or by the digest of one that was uploaded. Raises for nobody's fault."""
        began = self._clock()
        digest, queued_s = "", 0.0

        async def answer() -> Judgement:
            nonlocal digest, queued_s
            stored = self._stored(suite)
            digest = stored.digest
            self._check_tier(options.min_tier)
            language = self._language(submission.language)
            known = submission if language == submission.language else replace(submission, language=language)
            judgement, queued_s = await self._judged(known, stored, options, ticket, overrides)
            return judgement

        def failed(status: Status, message: str, after_s: float) -> Judgement:
            unknown = status is Status.INVALID_REQUEST and isinstance(suite, str) and not digest
            return Judgement(
                status, message=message, tier=self.offer.tier, retry_after_s=after_s, unknown_suite=unknown
            )

        judgement = await self._calls.answered(ticket, answer, failed)
        timing = replace(judgement.timing, queued_s=queued_s, total_s=self._clock() - began)
        judgement = replace(judgement, suite_digest=judgement.suite_digest or digest, timing=timing)
        self.meters.judged(judgement, submission.language, ticket.priority)
        return judgement

    async def execute(self, execution: Execution, ticket: Ticket = Ticket()) -> ExecutionResult:  # noqa: B008 - frozen
        """Runs a program once."""
        began = self._clock()
        executor, queued_s = self._executor, 0.0

        async def answer() -> ExecutionResult:
            nonlocal queued_s
            self._check_tier(execution.min_tier)
            if executor is None:
                raise RefusedError(Status.REJECTED_TIER, "this service only judges")
            language, limits = self._language(execution.language), execution.limits
            known = execution if language == execution.language else replace(execution, language=language)
            _check_limits(limits)
            size = len(execution.source) + len(execution.stdin) + sum(map(len, execution.files.values()))
            place = self._place(ticket, limits.memory_bytes, size)
            guard_s = limits.wall_s + COMPILE_S + GUARD_S
            once, meters = partial(executor.execute, known), self.meters
            executed = await self.scheduler.run(
                place, lambda: attempted(once, guard_s, ExecutionResult, meters.retried)
            )
            queued_s = place.queued_s
            return executed

        def failed(status: Status, message: str, after_s: float) -> ExecutionResult:
            return ExecutionResult(status, message=message, retry_after_s=after_s)

        executed = await self._calls.answered(ticket, answer, failed)
        executed = replace(executed, queued_s=queued_s, total_s=self._clock() - began)
        self.meters.executed(executed, execution.language, ticket.priority, self.offer.tier)
        return executed

    def put_suite(self, suite: Suite | StoredSuite) -> str:
        """Keeps a suite for requests that carry its digest. Raises DataError when it is unfit, or too large to keep."""
        stored = suite if isinstance(suite, StoredSuite) else StoredSuite.of(suite)
        if not self._suites.put(stored):
            raise DataError(
                f"the suite has {stored.size_bytes >> 20} MB, more than all suites may have together",
                fix="split it, or drop its largest cases",
            )
        self.meters.suites(self._suites.held_bytes)
        return stored.digest

    def cancel(self, tenant: str, request_id: str) -> bool:
        """Ends the calls of that name with CANCELLED; whether there were any."""
        return self._calls.cancel(tenant, request_id)

    async def close(self) -> None:
        """Turns away what waits, ends what runs."""
        self.scheduler.close()
        await self._calls.close()

    # --- what may run

    def _check_tier(self, least: Tier) -> None:
        if self.refusing:
            raise RefusedError(
                Status.REJECTED_TIER, f"the sandbox does not keep what its tier promises: {self.refusing}"
            )
        if least > self.offer.tier:
            message = f"it asks for tier {least.name}, and this service has {self.offer.tier.name}"
            raise RefusedError(Status.REJECTED_TIER, message)

    def _language(self, name: str) -> str:
        """The language by its own name."""
        known = language_of(name)
        if known is None or known.name not in self.offer.languages:
            raise RefusedError(Status.REJECTED_TIER, self.offer.why_not(known.name if known else name))
        return known.name

    def _stored(self, suite: Suite | StoredSuite | str) -> StoredSuite:
        if isinstance(suite, StoredSuite):
            return suite
        if isinstance(suite, str):
            stored = self._suites.get(suite)
            if stored is None:
                message = f"no suite {suite[:80]!r} is here: upload it (PutSuite), then ask again"
                raise RefusedError(Status.INVALID_REQUEST, message)
            return stored
        return StoredSuite.of(suite)

    async def _judged(
        self, submission: Submission, stored: StoredSuite, options: Options, ticket: Ticket, overrides: RequestOverrides
    ) -> tuple[Judgement, float]:
        """The judgement, and how long it waited for a slot."""
        suite = _overridden(stored.suite, overrides)
        size = len(submission.source) + stored.size_bytes
        place = self._place(ticket, _memory_bytes(suite, submission.language), size)
        guard_s = options.total_s + COMPILE_S + GUARD_S
        once, meters = partial(self._judge.judge, submission, suite, options), self.meters
        failed = partial(Judgement, tier=self.offer.tier)
        judgement = await self.scheduler.run(place, lambda: attempted(once, guard_s, failed, meters.retried))
        return judgement, place.queued_s

    def _place(self, ticket: Ticket, memory_bytes: int, size_bytes: int) -> QueuePlace:
        deadline = None if ticket.deadline is None else self._clock() + (ticket.deadline - self._wall())
        return QueuePlace(ticket.priority, deadline, memory_bytes, size_bytes)


def _check_limits(limits: Limits) -> None:
    """Raises RefusedError for limits that nobody can have."""
    try:
        validate_limits(limits, "request.limits")
    except DataError as error:
        raise RefusedError(Status.INVALID_REQUEST, str(error)) from None


def _overridden(suite: Suite, overrides: RequestOverrides) -> Suite:
    """The suite as this request wants it. Raises RefusedError for limits or a checker that nobody can have."""
    changes: dict[str, Any] = {}
    if overrides.limits:
        changes["limits"] = replace(suite.limits, **overrides.limits)  # type: ignore[arg-type]
    if overrides.checker is not None and not isinstance(suite, AssertSuite):
        changes["checker"] = overrides.checker
    if not changes:
        return suite
    try:
        validate(StdioSuite((StdioCase("", ""),), **changes), "request")
    except DataError as error:
        raise RefusedError(Status.INVALID_REQUEST, str(error)) from None
    return replace(suite, **changes)


def _memory_bytes(suite: Suite, language: str) -> int:
    """Memory that the cells of a judgement may take at once."""
    known = LANGUAGES[language]
    limits = run_limits(known, suite.limits, 0)
    if isinstance(suite, AssertSuite):
        return 2 * limits.memory_bytes  # the tests have a cell of their own
    return max(limits.memory_bytes, COMPILE_LIMITS.memory_bytes if known.compiled else 0)
