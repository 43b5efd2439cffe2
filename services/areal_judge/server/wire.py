"""The Sandbox contract as values and back. Pure; an unknown enum value or a malformed suite is an invalid request."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace

import orjson
from areal.errors import ArealError, DataError
from areal.v1 import sandbox_pb2 as pb

from areal_judge.judge import values
from areal_judge.judge.checkers import NAMES as CHECKERS
from areal_judge.judge.dispatch.executor import StoredSuite
from areal_judge.judge.dispatch.scheduler import MemoryBudget
from areal_judge.judge.dispatch.values import (
    Execution,
    ExecutionResult,
    Offer,
    Priority,
    RefusedError,
    RequestOverrides,
    Ticket,
)
from areal_judge.judge.formats.registry import FORMATS, suite_of
from areal_judge.judge.suites import from_json
from areal_judge.sandbox.values import DEFAULT_LIMITS, Limits, RunEnding, Tier

_STATUSES = {status: pb.SandboxStatus.Value(f"SANDBOX_STATUS_{status.value}") for status in values.Status}
_TIERS = {tier: pb.SandboxTier.Value(f"SANDBOX_TIER_{tier.name}") for tier in Tier}
_INTEGRITIES = {each: pb.SandboxIntegrity.Value(f"SANDBOX_INTEGRITY_{each.name}") for each in values.Integrity}
_MS = {"wall_ms": "wall_s", "cpu_ms": "cpu_s"}
_COUNTS = ("memory_bytes", "output_bytes", "stderr_bytes", "disk_bytes", "inodes", "processes", "open_files",
           "stack_bytes")  # fmt: skip


def tier_of(wire: int, least: Tier) -> Tier:
    """What a request asks for, or the service's own."""
    return least if not wire else Tier[_word(pb.SandboxTier, wire, "SANDBOX_TIER_", "min_tier")]


def ticket_of(request: pb.JudgeRequest | pb.ExecuteRequest, remaining_s: float | None) -> Ticket:
    """`remaining_s`: what the call's own deadline leaves."""
    deadlines = [time.time() + remaining_s] if remaining_s is not None else []
    if request.deadline_unix_ms:
        deadlines.append(request.deadline_unix_ms / 1000)
    priority = Priority.TRAIN
    if request.priority:
        priority = Priority[_word(pb.SandboxPriority, request.priority, "SANDBOX_PRIORITY_", "priority")]
    return Ticket(request.tenant, priority, min(deadlines, default=None), request.request_id)


def submission_of(program: pb.Program) -> values.Submission:
    return values.Submission(program.source, program.language or "python")


def options_of(request: pb.JudgeRequest, least: Tier) -> values.Options:
    scoring = values.Scoring.ALL_PASS
    if request.scoring:
        scoring = values.Scoring[_word(pb.SandboxScoring, request.scoring, "SANDBOX_SCORING_", "scoring")]
    integrity = values.Integrity.IN_PROCESS
    if request.min_integrity:
        name = _word(pb.SandboxIntegrity, request.min_integrity, "SANDBOX_INTEGRITY_", "min_integrity")
        integrity = values.Integrity[name]
    return values.Options(
        scoring=scoring,
        run_all=request.run_all,
        reveal=request.reveal,
        min_tier=tier_of(request.min_tier, least),
        min_integrity=integrity,
        total_s=request.total_ms / 1000 or values.Options.total_s,
    )


def overrides_of(request: pb.JudgeRequest) -> RequestOverrides:
    return RequestOverrides(limits_of(request.limits), checker_of(request.checker))


def limits_of(wire: pb.SandboxLimits) -> Mapping[str, float]:
    """The limits that are given."""
    given = {spec.name: value for spec, value in wire.ListFields() if value}
    return {_MS.get(name, name): value / 1000 if name in _MS else value for name, value in given.items()}


def limits_to_wire(limits: Limits) -> pb.SandboxLimits:
    wire = pb.SandboxLimits(wall_ms=round(limits.wall_s * 1000), cpu_ms=round(limits.cpu_s * 1000))
    for name in _COUNTS:
        setattr(wire, name, getattr(limits, name))
    return wire


def checker_of(wire: pb.Checker) -> values.Checker | None:
    if not wire.name:
        return None
    return values.Checker(
        wire.name, wire.absolute, wire.relative, wire.fold_case, wire.unordered, not wire.lists_are_not_tuples,
        wire.nan_equal, program=wire.program,
    )  # fmt: skip


def suite_of_json(document: bytes, format: str) -> StoredSuite:
    """A suite as it was sent. Takes its time over megabytes: call it in a thread.

    Raises RefusedError for what is no suite, DataError for one that is unfit to judge.
    """
    if format in ("", "native"):
        return StoredSuite.of(from_json(document), read=True)
    try:
        row = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise RefusedError(values.Status.INVALID_REQUEST, f"suite.json is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise RefusedError(values.Status.INVALID_REQUEST, "suite.json: a row is an object")
    try:
        return StoredSuite.of(suite_of(row, format))
    except DataError:
        raise
    except ArealError as error:
        raise RefusedError(values.Status.INVALID_REQUEST, str(error)) from None


def judgement_to_wire(judgement: values.Judgement, request_id: str, runtime_digest: str) -> pb.JudgeResult:
    timing = judgement.timing
    wire = pb.JudgeResult(
        request_id=request_id,
        status=_STATUSES[judgement.status],
        cases_total=judgement.cases_total,
        cases_run=sum(case.status is not values.Status.SKIPPED for case in judgement.cases),
        cases_passed=judgement.cases_passed,
        cases=[case_to_wire(case) for case in judgement.cases],
        tier=_TIERS[judgement.tier],
        integrity=_INTEGRITIES[judgement.integrity],
        flags=sorted(flag.value for flag in judgement.flags),
        timing=pb.SandboxTiming(
            queued_us=_us(timing.queued_s), setup_us=_us(timing.setup_s), compile_us=_us(timing.compile_s),
            run_us=_us(timing.run_s), judge_us=_us(timing.judge_s), total_us=_us(timing.total_s),
        ),
        runtime_digest=runtime_digest,
        suite_digest=judgement.suite_digest,
        retryable=judgement.retryable,
        message=judgement.message,
        attempt=judgement.attempt,
        retry_after_ms=math.ceil(judgement.retry_after_s * 1000),
        unknown_suite=judgement.unknown_suite,
    )  # fmt: skip
    if judgement.score is not None:
        wire.score = judgement.score
    if judgement.compile is not None:
        wire.compile.CopyFrom(case_to_wire(judgement.compile))
    return wire


def case_to_wire(case: values.CaseResult) -> pb.CaseResult:
    return pb.CaseResult(
        index=case.index, status=_STATUSES[case.status], wall_us=_us(case.wall_s), cpu_us=_us(case.cpu_s),
        max_rss_bytes=case.max_rss_bytes, exit_code=case.exit_code, signal=case.signal,
        stdout_head=_text(case.stdout_head), stderr_head=_text(case.stderr_head), detail=_text(case.detail),
    )  # fmt: skip


def execution_of(request: pb.ExecuteRequest, least: Tier) -> Execution:
    submission = submission_of(request.program)
    given = limits_of(request.limits)
    return Execution(
        submission.source,
        submission.language,
        request.stdin,
        dict(request.files),
        tuple(request.keep),
        replace(DEFAULT_LIMITS, **given) if given else DEFAULT_LIMITS,  # type: ignore[arg-type]
        tier_of(request.min_tier, least),
    )


def executed_to_wire(executed: ExecutionResult, request_id: str) -> pb.ExecuteResult:
    ended = executed.ended
    wire = pb.ExecuteResult() if ended is None else _ended_to_wire(ended)
    wire.request_id = request_id
    wire.status = _STATUSES[executed.status]
    wire.retryable = executed.status in values.RETRYABLE
    wire.message = executed.message
    wire.attempt = executed.attempt
    wire.retry_after_ms = math.ceil(executed.retry_after_s * 1000)
    wire.timing.queued_us = _us(executed.queued_s)
    wire.timing.total_us = _us(executed.total_s)
    if executed.compile is not None:
        wire.compile.CopyFrom(case_to_wire(executed.compile))
    return wire


def _ended_to_wire(ended: RunEnding) -> pb.ExecuteResult:
    return pb.ExecuteResult(
        stdout=ended.stdout, stderr=ended.stderr, stderr_truncated=ended.stderr_truncated, files=ended.files,
        exit_code=ended.exit_code, signal=ended.signal, wall_us=_us(ended.wall_s), cpu_us=_us(ended.cpu_s),
        max_rss_bytes=ended.max_rss_bytes, memory_peak_bytes=ended.memory_peak_bytes or 0,
        tier=_TIERS[ended.tier],
        timing=pb.SandboxTiming(setup_us=_us(ended.setup_s), run_us=_us(ended.wall_s)),
    )  # fmt: skip


def offer_to_wire(
    offer: Offer, slots: int, memory: MemoryBudget, version: str, ready: bool, self_test: str
) -> pb.SandboxCapabilities:
    powers = offer.powers
    return pb.SandboxCapabilities(
        tier=_TIERS[offer.tier],
        min_tier=_TIERS[offer.min_tier],
        probes=[pb.SandboxProbe(name=each.name, held=each.held, detail=each.detail) for each in powers.probes],
        runtimes=[
            pb.SandboxRuntime(language=each.language, version=each.version, digest=each.digest)
            for each in offer.runtimes
            if each.language in offer.languages
        ],
        slots=slots,
        default_limits=limits_to_wire(DEFAULT_LIMITS),
        memory_budget_bytes=memory.budget_bytes,
        version=version,
        fork=powers.fork,
        execute=powers.execute,
        scratch=powers.scratch,
        kernel=powers.kernel,
        formats=("auto", *FORMATS),
        checkers=CHECKERS,
        runtime_digest=offer.runtime_digest,
        ready=ready,
        self_test=self_test,
    )


def _word(enum: object, number: int, prefix: str, name: str) -> str:
    """An enum value without its prefix."""
    try:
        return str(enum.Name(number)).removeprefix(prefix)  # type: ignore[attr-defined]
    except ValueError:
        raise RefusedError(values.Status.INVALID_REQUEST, f"{name}: {number} is unknown to this service") from None


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def _text(value: str) -> str:
    """Protobuf takes no lone surrogates."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
