"""Request pipeline: tier check, bounded queue, slot, judge or executor.

Promises that every call ends with an answer by its deadline (`calls`); that only a status of the program carries a
score; that a call that is cancelled ends its run; that a sandbox which failed is tried once more, and a program that
ran into a limit never (`attempts`).
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from areal.errors import ArealError, ConfigError, DataError

from areal_judge.judge.dispatch.executor import Executor, StoredSuite, SuiteStore
from areal_judge.judge.dispatch.meters import Meters
from areal_judge.judge.dispatch.scheduler import Bounds, MemoryBudget, QueuePlace, SlotScheduler
from areal_judge.judge.dispatch.values import Execution, ExecutionResult, Offer, RefusedError, RequestOverrides, Ticket
from areal_judge.judge.judge import Judge
from areal_judge.judge.languages.table import COMPILE_LIMITS, LANGUAGES, language_of
from areal_judge.judge.languages.toolchains import run_limits
from areal_judge.judge.validation import validate, validate_limits
from areal_judge.judge.values import (
    OF_PROGRAM,
    AssertSuite,
    Judgement,
    Options,
    Status,
    StdioCase,
    StdioSuite,
    Submission,
    Suite,
)
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


# ---- Retry of a judgement: once more when the sandbox failed, never when the program did
# Owns what a failure of the machine turns into, and the guard: a judge that answers nothing, or something that is no
# judgement, is a SANDBOX_ERROR. A program that ran into a limit is never tried again.


log = logging.getLogger(__name__)
A = TypeVar("A", Judgement, ExecutionResult)

RETRY_PAUSE_S = 0.25  # what took one zygote may be taking others: they are replaced by then


async def attempted(
    once: Callable[[], Awaitable[A]], guard_s: float, failed: Callable[..., A], retried: Callable[[], None]
) -> A:
    """The outcome of the first attempt, or of the second one when the sandbox failed on the first.

    Args:
        once: one attempt; it is given up after `guard_s`.
        failed: makes the outcome of an attempt that had none, of a status and a `message`.
        retried: hears of a second attempt.
    """
    result = await _attempt(once, guard_s, failed)
    if result.status is not Status.SANDBOX_ERROR:
        return result
    log.warning("the sandbox failed, trying once more: %s", result.message)
    retried()
    await asyncio.sleep(RETRY_PAUSE_S)
    return replace(await _attempt(once, guard_s, failed), attempt=2)


async def _attempt(once: Callable[[], Awaitable[A]], guard_s: float, failed: Callable[..., A]) -> A:
    guard = asyncio.timeout(guard_s)
    try:
        async with guard:
            return _sound(await once(), failed)
    except TimeoutError:
        if not guard.expired():
            raise
        log.error("a judgement took more than %g s and was given up", guard_s)
        return failed(Status.SANDBOX_ERROR, message=f"it was not over after {guard_s:g} s, which no limit allows")
    except ConfigError as error:
        return failed(Status.REJECTED_TIER, message=str(error))
    except ArealError as error:
        return failed(Status.SANDBOX_ERROR, message=str(error))
    except Exception as error:
        log.exception("judging failed")
        return failed(Status.SANDBOX_ERROR, message=f"judging failed: {type(error).__name__}: {error}")


def _sound(result: A, failed: Callable[..., A]) -> A:
    """A judgement has a score exactly when its status is the program's doing, or it is no judgement."""
    if isinstance(result, Judgement):
        scored = result.score is not None and math.isfinite(result.score)
        if scored != (result.status in OF_PROGRAM) or (not scored and result.score is not None):
            log.error("the judge answered %s with the score %r", result.status, result.score)
            return failed(
                Status.SANDBOX_ERROR, message=f"the judge answered {result.status} with the score {result.score}"
            )
    return result


# ---- Pending calls: each is answered by its deadline, at a cancellation, or when the service closes
# Owns deadlines and cancellation, and what a refusal turns into.


Answer = TypeVar("Answer")


@dataclass(eq=False)
class _PendingCall:
    """One pending call."""

    scope: asyncio.Timeout
    ended_by: tuple[Status, str] | None = None  # what ended it before its deadline


class PendingCalls:
    """All pending calls. Lives on one event loop."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        """`wall`: the clock of tickets' deadlines."""
        self._wall = wall
        self._named: dict[tuple[str, str], set[_PendingCall]] = {}
        self._calls: set[_PendingCall] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def answered(
        self, ticket: Ticket, answer: Callable[[], Awaitable[Answer]], failed: Callable[[Status, str, float], Answer]
    ) -> Answer:
        """The answer, or what stands for it: by the deadline, after a cancellation, for a refusal."""
        left_s = None if ticket.deadline is None else ticket.deadline - self._wall()
        if left_s is not None and (left_s <= 0 or math.isnan(left_s)):
            return failed(Status.DEADLINE_EXCEEDED, "its deadline had passed when it came", 0.0)
        scope = asyncio.timeout(left_s)
        call = _PendingCall(scope)
        self._calls.add(call)
        self._idle.clear()
        name = (ticket.tenant, ticket.request_id) if ticket.request_id else None
        if name is not None:
            self._named.setdefault(name, set()).add(call)
        try:
            async with scope:
                return await answer()
        except TimeoutError:
            if not scope.expired():
                raise
            if call.ended_by is not None:
                return failed(*call.ended_by, 0.0)
            return failed(Status.DEADLINE_EXCEEDED, "its deadline passed before there was a judgement", 0.0)
        except RefusedError as refused:
            return failed(refused.status, refused.message, refused.retry_after_s)
        except DataError as error:
            return failed(Status.GOLD_ERROR, str(error), 0.0)
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()
            if name is not None:
                self._left(name, call)

    def cancel(self, tenant: str, request_id: str) -> bool:
        """Ends the calls of that name with CANCELLED; whether there were any."""
        calls = self._named.get((tenant, request_id), set())
        for call in calls:
            _end(call, Status.CANCELLED, "its caller cancelled it")
        return bool(calls)

    async def close(self) -> None:
        """Ends all calls and waits until each has its answer."""
        for call in self._calls:
            _end(call, Status.SANDBOX_ERROR, "the reward service is stopping")
        await self._idle.wait()

    def _left(self, name: tuple[str, str], call: _PendingCall) -> None:
        self._named[name].discard(call)
        if not self._named[name]:
            del self._named[name]


def _end(call: _PendingCall, status: Status, message: str) -> None:
    if call.ended_by is None:
        call.ended_by = (status, message)
        call.scope.reschedule(asyncio.get_running_loop().time())
