"""`code`: the program in an answer, judged by its row's tests in the sandbox.

Owns the way from an item to a judgement and back: which program an answer holds, which suite a row has (read once a
row), and whose fault it is when there is no score. Expected values stay here and in the judge; what a verdict says of a
failed case never shows them. A machine that could not judge is a fault, never a score of 0. The only module here that
knows the judge's package.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import xxhash
from areal_judge import api
from cachetools import LRUCache

from areal.clients.reward import call_timeout_s
from areal.errors import ArealError, InfraError
from areal.net.status import fault
from areal.observe.metrics import RoleMetrics
from areal.reward.verifier import Verifier, fault_result, row_of_item
from areal.single_flight import SingleFlight
from areal.spec.serving import CodeReward, Reward
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as pb

log = logging.getLogger(__name__)

NO_PROGRAM = "NO_PROGRAM"
_SUITES = 4096  # of rows seen last: as many as groups are in work at once, and more
_SUITE_BYTES = 256 << 20  # of suites that are kept
_LARGE_ROW_BYTES = 256 << 10  # reading a larger one takes more than 10 ms: beside the event loop
_FORKS = 32  # processes of a run that may fork
_DETAIL_CHARS = 500  # kept with every sample


class VerifierJudging(Protocol):
    """What a dispatcher does for a verifier."""

    async def judge(
        self, submission: api.Submission, suite: api.StoredSuite, options: api.Options, ticket: api.Ticket
    ) -> api.Judgement:  # fmt: skip
        """Judges one program. What befalls the machine is a judgement without a score."""


@dataclass(frozen=True)
class CodeSettings:
    """How this job's programs are judged."""

    tenant: str  # whose requests these are
    code: CodeReward
    deadline_s: float  # of an item that names none

    @classmethod
    def of(cls, tenant: str, reward: Reward) -> "CodeSettings":
        return cls(tenant, reward.programs, reward.longest_score_s)

    def options(self) -> api.Options:
        code = self.code
        return api.Options(api.Scoring(code.scoring), min_tier=api.Tier[code.min_tier], total_s=code.total_seconds)

    def adapted(self, suite: api.Suite) -> api.Suite:
        """A row's suite with what the job says of all rows."""
        if self.code.isolate_cases and isinstance(suite, api.CallSuite):
            suite = replace(suite, isolate_cases=True)
        if {"fork", "compiler"} & set(self.code.needs) and suite.limits.processes < _FORKS:
            suite = replace(suite, limits=replace(suite.limits, processes=_FORKS))
        return suite


class CodeVerifier(Verifier):
    """Scores programs. The dispatcher is whoever started it to start and to stop."""

    name = "code"

    def __init__(
        self, dispatcher: VerifierJudging, settings: CodeSettings, *, slots: int, kept_suites: int = _SUITES
    ) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self.slots = slots
        self._options = settings.options()
        least = _SUITE_BYTES // kept_suites  # what a small suite counts, so that their number is bounded, too
        self._suites: LRUCache[bytes, api.StoredSuite] = LRUCache(
            _SUITE_BYTES, getsizeof=lambda suite: max(least, suite.size_bytes)
        )
        self._reading: SingleFlight[api.StoredSuite] = SingleFlight()
        self._numbers = itertools.count(1)

    async def stop(self) -> None:
        await self._reading.close()
        self._suites.clear()

    async def score(self, items: Sequence[pb.ScoreItem]) -> list[pb.ScoreResult]:
        return list(await asyncio.gather(*map(self._score, items)))

    async def _score(self, item: pb.ScoreItem) -> pb.ScoreResult:
        began = time.monotonic()
        language = self._settings.code.language
        if (source := api.program_of(item.completion, language)) is None:
            return pb.ScoreResult(verdict=common.Verdict(score=0.0, status=NO_PROGRAM, method=self.name))
        try:
            suite, submission = await self._suite(item), api.Submission(source, language)
            judged = await self._dispatcher.judge(submission, suite, self._options, self._ticket(item))
        except ArealError as error:
            return pb.ScoreResult(fault=fault(error), wall_s=time.monotonic() - began)
        except Exception as error:
            log.exception("a program could not be judged")
            return pb.ScoreResult(fault=fault(error, with_traceback=True), wall_s=time.monotonic() - began)
        return _result(judged, wall_s=time.monotonic() - began)

    def _ticket(self, item: pb.ScoreItem) -> api.Ticket:
        """Nobody wants the answer after the caller's call has timed out."""
        until = time.time() + call_timeout_s(item.deadline_s or self._settings.deadline_s)
        key = item.key
        request_id = f"{key.group}.{key.index}.{key.attempt}.{next(self._numbers)}"
        return api.Ticket(self._settings.tenant, api.Priority.TRAIN, until, request_id)

    async def _suite(self, item: pb.ScoreItem) -> api.StoredSuite:
        """The suite of the item's row. Raises DataError for a row that can judge nothing."""
        key = xxhash.xxh3_128_digest(item.row_json)
        if (known := self._suites.get(key)) is not None:
            return known
        return await self._reading.share(key, lambda: self._read(key, item))  # a group asks for one row at once

    async def _read(self, key: bytes, item: pb.ScoreItem) -> api.StoredSuite:
        large = len(item.row_json) > _LARGE_ROW_BYTES
        suite = await asyncio.to_thread(self._parsed, item) if large else self._parsed(item)
        if suite.size_bytes <= _SUITE_BYTES:
            self._suites[key] = suite
        return suite

    def _parsed(self, item: pb.ScoreItem) -> api.StoredSuite:
        suite = api.suite_of(row_of_item(item), self._settings.code.format)
        return api.StoredSuite.of(self._settings.adapted(suite))


@contextlib.asynccontextmanager
async def judging_programs(
    tenant: str, reward: Reward, metrics: RoleMetrics, changed: Callable[[bool], Awaitable[None]]
) -> AsyncIterator[tuple[CodeVerifier, bool, str]]:
    """The verifier of a job on a sandbox of its own, whether that is ready, and its tier.

    `changed` hears each outcome of the sandbox's self-test.

    Raises:
        ConfigError: the machine is below the tier that the job asks for.
        InfraError: the sandbox does not start.
    """
    code = reward.programs
    languages = ("python",) if code.language == "python" else ("python", code.language)
    wanted = api.StackSettings(min_tier=api.Tier[code.min_tier], allow_unsafe=code.allow_unsafe, languages=languages)
    async with api.code_stack(wanted, metrics, changed) as stack:
        dispatcher = stack.dispatcher
        verifier = CodeVerifier(dispatcher, CodeSettings.of(tenant, reward), slots=dispatcher.slots)
        yield verifier, stack.readiness.ready, dispatcher.offer.tier.name


def look_at_suite(row: Mapping[str, Any], code: CodeReward) -> None:
    """Raises ArealError for a row whose tests could judge no program."""
    api.suite_of(row, code.format)


def _result(judged: api.Judgement, *, wall_s: float) -> pb.ScoreResult:
    status = judged.status
    if status in api.OF_PROGRAM and judged.score is not None:
        verdict = common.Verdict(
            score=judged.score, status=status.value, method="code", detail=detail_of(judged), tier=judged.tier.name
        )
        return pb.ScoreResult(verdict=verdict, wall_s=wall_s)
    said = f"{status.value}: {judged.message or 'no word of it'}"
    if status in api.RETRYABLE:
        error = InfraError(said, fix="it is tried again; more reward replicas help when it is overloaded")
        return pb.ScoreResult(fault=fault(error), wall_s=wall_s)
    kind, fix = _FAULTS.get(status, (common.FAULT_KIND_BUG, ""))
    return fault_result(kind, said, fix=fix, wall_s=wall_s)


_FAULTS = {
    api.Status.GOLD_ERROR: (common.FAULT_KIND_DATA, "correct the row's tests, or drop the row"),
    api.Status.INVALID_REQUEST: (common.FAULT_KIND_DATA, "correct the row's tests, or reward.code in the job"),
    api.Status.REJECTED_TIER: (
        common.FAULT_KIND_CONFIG,
        "run the reward service where the sandbox can be stronger (docs/reward.md), or ask for less in reward.code",
    ),
}


def detail_of(judged: api.Judgement) -> str:
    """How a judgement came about, in a line that gives no expected value away."""
    parts = [f"passed {judged.cases_passed}/{judged.cases_total or len(judged.cases)}"]
    failed = next((case for case in judged.cases if case.status not in (api.Status.PASSED, api.Status.SKIPPED)), None)
    if failed is not None:
        parts.append(f"case {failed.index} {failed.status.value}{f': {failed.detail}' if failed.detail else ''}")
    elif judged.message:
        parts.append(judged.message)
    if judged.flags:
        parts.append(f"flags {','.join(sorted(flag.value for flag in judged.flags))}")
    return "; ".join(parts)[:_DETAIL_CHARS]
