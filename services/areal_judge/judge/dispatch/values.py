"""Values of the dispatcher: ticket, overrides, execution request and result."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

from areal_judge.judge.values import CaseResult, Checker, Status
from areal_judge.sandbox.values import DEFAULT_LIMITS, Limits, Powers, RunEnding, Tier


class Priority(IntEnum):
    """Classes of work, each first in first out. Training has two starts of three while both wait."""

    TRAIN = 0
    EVAL = 1


@dataclass(frozen=True)
class Ticket:
    """Who asks, how urgently, until when."""

    tenant: str = ""  # a job or an experiment: who may cancel by `request_id`
    priority: Priority = Priority.TRAIN
    deadline: float | None = None  # unix seconds; afterwards nobody wants the answer
    request_id: str = ""  # what `cancel` names; unique for the tenant while it runs


@dataclass(frozen=True)
class RequestOverrides:
    """What one request wants other than its suite says."""

    limits: Mapping[str, float] = field(default_factory=dict)  # fields of Limits
    checker: Checker | None = None


@dataclass(frozen=True)
class Execution:
    """A program to run once, judged by nobody."""

    source: str
    language: str = "python"
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    keep: tuple[str, ...] = ()  # files to bring back
    limits: Limits = DEFAULT_LIMITS
    min_tier: Tier = Tier.T2


@dataclass(frozen=True)
class ExecutionResult:
    """What became of an execution. PASSED is an end by itself with exit code 0; nothing was compared."""

    status: Status
    ended: RunEnding | None = None  # None: it never ran
    compile: CaseResult | None = None
    queued_s: float = 0.0
    total_s: float = 0.0
    message: str = ""
    retry_after_s: float = 0.0
    attempt: int = 1


class RefusedError(Exception):
    """A request that was not run, or not to its end, for no fault of its program."""

    def __init__(self, status: Status, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s


# ---- Capabilities of a service: tier, languages and limits, published as they are and checked before anything waits


@dataclass(frozen=True)
class LanguageOffer:
    """A language, and what stands against judging it on this machine."""

    language: str
    version: str = ""
    digest: str = ""
    refused: str = ""


@dataclass(frozen=True)
class Offer:
    """Powers of the sandbox, languages of the machine."""

    powers: Powers
    runtimes: tuple[LanguageOffer, ...]
    min_tier: Tier = Tier.T2
    judge_version: str = "2"  # of everything else that a judgement depends on: remembered ones are void when it changes

    @property
    def tier(self) -> Tier:
        return self.powers.tier

    @cached_property
    def languages(self) -> frozenset[str]:
        """What can be judged here."""
        return frozenset(runtime.language for runtime in self.runtimes if not runtime.refused)

    @cached_property
    def runtime_digest(self) -> str:
        """Of everything that runs programs here."""
        parts = [self.judge_version, *sorted(f"{each.language} {each.version} {each.digest}" for each in self.runtimes)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def why_not(self, language: str) -> str:
        """Why a language can't be judged here, and what can."""
        offered = ", ".join(sorted(self.languages)) or "nothing"
        for runtime in self.runtimes:
            if runtime.language == language and runtime.refused:
                return f"{language} can't run here: {runtime.refused} (this service runs {offered})"
        return f"this service can't run {language[:40]!r}; it runs {offered}"
