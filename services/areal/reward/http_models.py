"""What people send to and get from the HTTP face: JSON for the same questions and answers as the Sandbox contract."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from areal.reward.dispatch.offer import Offer
from areal.reward.dispatch.values import Executed, Priority
from areal.reward.judge.values import CaseResult, Checker, Judgement, Scoring, Status

_ADD_SUITE: dict[str, Any] = {
    "kind": "stdio",
    "cases": [{"stdin": "1 2\n", "expected": "3\n"}, {"stdin": "5 -7\n", "expected": "-2\n"}],
}
_ADD = "print(sum(map(int, input().split())))"


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LimitsBody(_Body):
    """Bounds of one run; what is left out, the suite or the service decides."""

    wall_s: Annotated[float | None, Field(gt=0, le=3600)] = None
    cpu_s: Annotated[float | None, Field(gt=0, le=3600)] = None
    memory_bytes: Annotated[int | None, Field(gt=0)] = None
    output_bytes: Annotated[int | None, Field(gt=0)] = None
    stderr_bytes: Annotated[int | None, Field(ge=0)] = None
    disk_bytes: Annotated[int | None, Field(ge=0)] = None
    inodes: Annotated[int | None, Field(gt=0)] = None
    processes: Annotated[int | None, Field(gt=0)] = None
    open_files: Annotated[int | None, Field(gt=0)] = None
    stack_bytes: Annotated[int | None, Field(gt=0)] = None

    def given(self) -> dict[str, float]:
        return self.model_dump(exclude_none=True)


class CheckerBody(_Body):
    """How an output is compared, in place of what the suite says."""

    name: str = Field("tokens", examples=["tokens", "exact", "tokens_float", "custom"])
    absolute: float = 0.0
    relative: float = 0.0
    fold_case: bool = False
    unordered: bool = False
    tuples_are_lists: bool = True
    nan_equal: bool = False
    program: str = ""

    def value(self) -> Checker:
        return Checker(**self.model_dump())


class Asking(_Body):
    """Who asks, how urgently, until when."""

    tenant: str = Field("", max_length=200, description="A job or an experiment: shares are fair among tenants.")
    priority: Literal["TRAIN", "EVAL", "BATCH"] = "EVAL"
    request_id: str = Field("", max_length=200)
    timeout_s: Annotated[float | None, Field(gt=0, description="After it the answer is 504, and no run goes on.")] = 60

    @property
    def its_priority(self) -> Priority:
        return Priority[self.priority]


Tier = Literal["T0", "T1", "T2", "T3", "T4"]


class JudgeBody(Asking):
    """A program and the suite that judges it: itself, or the digest of one that was uploaded."""

    model_config = ConfigDict(
        title="Judge", json_schema_extra={"examples": [{"source": _ADD, "language": "python", "suite": _ADD_SUITE}]}
    )

    source: str = Field(examples=[_ADD])
    language: str = "python"
    suite: dict[str, Any] | None = Field(None, description="A suite, or a row of a data set in `format`.")
    format: str = Field("auto", description="native, auto, humaneval, mbpp, apps, … : see /capabilities.")
    suite_digest: str = Field("", description="What POST /suites answered.")
    limits: LimitsBody = LimitsBody()
    checker: CheckerBody | None = None
    scoring: Scoring = Scoring.ALL_PASS
    run_all: bool = Field(False, description="Go on after a failed case.")
    reveal: bool = Field(False, description="Show expected values: for people, never for a model.")
    min_tier: Tier | None = None
    min_integrity: Literal["IN_PROCESS", "SPLIT"] = "IN_PROCESS"
    total_s: Annotated[float, Field(gt=0, le=3600)] = 20.0
    no_cache: bool = False


class SuiteBody(_Body):
    """A suite to keep."""

    suite: dict[str, Any] = Field(examples=[_ADD_SUITE])
    format: str = "auto"


class ExecuteBody(Asking):
    """A program to run once."""

    model_config = ConfigDict(
        title="Execute", json_schema_extra={"examples": [{"source": "print(input())", "stdin": "hello\n"}]}
    )

    source: str
    language: str = "python"
    stdin: str = ""
    files: dict[str, str] = Field(default_factory=dict, description="Texts by relative path, in the scratch.")
    keep: list[str] = Field(default_factory=list, description="Files to bring back, as base64.")
    limits: LimitsBody = LimitsBody()
    min_tier: Tier | None = None


def judgement_json(judgement: Judgement, request_id: str) -> dict[str, Any]:
    """A judgement for people. `score` is null unless the status is the program's doing."""
    timing = judgement.timing
    return {
        "request_id": request_id,
        "status": judgement.status.value,
        "score": judgement.score,
        "message": judgement.message,
        "cases_total": judgement.cases_total,
        "cases_passed": judgement.cases_passed,
        "cases": [_case(case) for case in judgement.cases],
        "compile": None if judgement.compile is None else _case(judgement.compile),
        "tier": judgement.tier.name,
        "integrity": judgement.integrity.name,
        "flags": sorted(flag.value for flag in judgement.flags),
        "cached": judgement.cached,
        "retryable": judgement.retryable,
        "attempt": judgement.attempt,
        "suite_digest": judgement.suite_digest,
        "timing": {name: round(seconds, 6) for name, seconds in vars(timing).items()},
    }


def executed_json(executed: Executed, request_id: str) -> dict[str, Any]:
    """An execution for people; bytes that are no UTF-8 are shown as such."""
    reply: dict[str, Any] = {
        "request_id": request_id,
        "status": executed.status.value,
        "message": executed.message,
        "compile": None if executed.compile is None else _case(executed.compile),
        "attempt": executed.attempt,
        "queued_s": round(executed.queued_s, 6),
    }
    if (ended := executed.ended) is not None:
        reply |= {
            "exit_code": ended.exit_code,
            "signal": ended.signal,
            "stdout": ended.stdout.decode("utf-8", "backslashreplace"),
            "stderr": ended.stderr.decode("utf-8", "backslashreplace"),
            "stderr_truncated": ended.stderr_truncated,
            "files": {name: base64.b64encode(data).decode() for name, data in ended.files.items()},
            "wall_s": round(ended.wall_s, 6),
            "cpu_s": round(ended.cpu_s, 6),
            "max_rss_bytes": ended.max_rss_bytes,
            "tier": ended.tier.name,
        }
    return reply


def offer_json(offer: Offer) -> dict[str, Any]:
    """What a service can run, and behind what."""
    powers = offer.powers
    return {
        "tier": offer.tier.name,
        "min_tier": offer.min_tier.name,
        "memory_bound": powers.memory_bound.value,
        "fork": powers.fork,
        "execute": powers.execute,
        "scratch": powers.scratch,
        "kernel": powers.kernel,
        "probes": [{"name": each.name, "held": each.held, "detail": each.detail} for each in powers.probes],
        "languages": [
            {"language": each.language, "version": each.version, "digest": each.digest, "refused": each.refused}
            for each in offer.runtimes
        ],
        "runtime_digest": offer.runtime_digest,
    }


def _case(case: CaseResult) -> dict[str, Any]:
    shown = {name: value for name, value in vars(case).items() if name not in ("stdout_head", "stderr_head", "status")}
    texts = {name: value.encode("utf-8", "replace").decode() for name in ("stdout_head", "stderr_head")
             if (value := getattr(case, name))}  # fmt: skip
    return {**shown, **texts, "status": case.status.value}


HTTP_STATUS = {
    Status.CANCELLED: 499,
    Status.DEADLINE_EXCEEDED: 504,
    Status.REJECTED_TIER: 412,
    Status.REJECTED_OVERLOAD: 429,
    Status.INVALID_REQUEST: 400,
    Status.GOLD_ERROR: 422,
    Status.SANDBOX_ERROR: 503,
}
"""Of answers without a score; all others are 200."""
