"""Values of the judge: suites, submissions, options, judgements.

A *suite* holds the tests of one problem, expected values included; it never enters a cell. A *judgement* has a score
only when its status says something about the program. Everything else is somebody else's fault, and is tried again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from areal_judge.sandbox.values import DEFAULT_LIMITS, Limits, Tier


class Status(StrEnum):
    """What became of a case, or of a whole judgement."""

    PASSED = "PASSED"
    WRONG_ANSWER = "WRONG_ANSWER"
    COMPILE_ERROR = "COMPILE_ERROR"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    TIME_LIMIT = "TIME_LIMIT"
    MEMORY_LIMIT = "MEMORY_LIMIT"
    OUTPUT_LIMIT = "OUTPUT_LIMIT"
    DISK_LIMIT = "DISK_LIMIT"
    PROCESS_LIMIT = "PROCESS_LIMIT"
    PROTOCOL_VIOLATION = "PROTOCOL_VIOLATION"  # frames that nobody asked for, or none where one was due
    BAD_RESULT_TYPE = "BAD_RESULT_TYPE"  # a value that is no plain builtin
    SKIPPED = "SKIPPED"  # a case after the first that failed
    CANCELLED = "CANCELLED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"  # the caller's, before the program could be judged
    REJECTED_TIER = "REJECTED_TIER"
    REJECTED_OVERLOAD = "REJECTED_OVERLOAD"
    INVALID_REQUEST = "INVALID_REQUEST"
    GOLD_ERROR = "GOLD_ERROR"  # the suite is at fault: empty, without expected values, refused by its own reference
    SANDBOX_ERROR = "SANDBOX_ERROR"


OF_PROGRAM = frozenset({
    Status.PASSED, Status.WRONG_ANSWER, Status.COMPILE_ERROR, Status.RUNTIME_ERROR, Status.TIME_LIMIT,
    Status.MEMORY_LIMIT, Status.OUTPUT_LIMIT, Status.DISK_LIMIT, Status.PROCESS_LIMIT, Status.PROTOCOL_VIOLATION,
    Status.BAD_RESULT_TYPE,
})  # fmt: skip
"""Statuses that carry a score."""

RETRYABLE = frozenset({
    Status.CANCELLED, Status.DEADLINE_EXCEEDED, Status.REJECTED_OVERLOAD, Status.SANDBOX_ERROR,
})  # fmt: skip
"""Statuses that say nothing about the program: asking again may help."""


class Flag(StrEnum):
    """Signs of cheating. Counted and reported; none of them changes a score."""

    EXITED_EARLY = "exited_early"  # the program ended its process before its last case
    EXTRA_FRAMES = "extra_frames"
    FOREIGN_TYPE = "foreign_type"  # a result whose type only looks like a builtin, or overrides equality
    SYSTEM_CALLS = "system_calls"  # its source names ptrace, namespaces, libraries; calls are refused, not counted
    READS_TESTS = "reads_tests"  # its source names test files, frames of its caller, the judge's modules
    CATCHES_SIGNALS = "catches_signals"
    OUTPUT_CAP = "output_cap"
    NO_ENTRY_POINT = "no_entry_point"  # the name is bound, but not by the program's own source


class Integrity(IntEnum):
    """How far the program is from what judges it."""

    IN_PROCESS = 0  # tests run in the program's process, or evaluate what it returns: a hostile one can fake a pass
    SPLIT = 1  # the program gets inputs and gives outputs; everything else is elsewhere


class Scoring(StrEnum):
    """From cases to a score."""

    ALL_PASS = "all_pass"  # 1.0 when every case passes, else 0.0; stops at the first that fails
    FRACTION = "fraction"  # passed / total; runs all


@dataclass(frozen=True)
class Checker:
    """How an output is compared with the expected one. `judge.checkers` says what each name does."""

    name: str = (
        "tokens"  # exact | rstrip_lines | tokens | tokens_float | lines_unordered | last_line | lcb_decimal | custom
    )
    absolute: float = 0.0  # of tokens_float, and of floats in function results
    relative: float = 0.0
    fold_case: bool = False
    unordered: bool = False  # of function results: compare as multisets
    tuples_are_lists: bool = True  # of function results: many data sets went through JSON
    nan_equal: bool = False
    bool_is_int: bool = False  # of function results: True is 1, as Python's == has it
    program: str = ""  # of custom: Python source, run in a cell of its own with files input, output, answer
    # (testlib's exit codes: 0 accepted, 1 wrong, 2 presentation; anything else is no verdict, so a wrong answer)


@dataclass(frozen=True)
class StdioCase:
    """Standard input, and the expected standard output."""

    stdin: str
    expected: str


@dataclass(frozen=True)
class CallCase:
    """Arguments of a call, and the expected result: plain builtins that the codec can carry."""

    arguments: tuple[Any, ...]
    expected: Any
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StdioSuite:
    """The program reads and prints; a process a case."""

    cases: tuple[StdioCase, ...]
    checker: Checker = Checker()
    limits: Limits = DEFAULT_LIMITS
    ignore_exit_code: bool = False
    needs_numpy: bool = False  # of Python programs
    prelude: str = ""  # of Python programs: imports that stand behind the program's own names


@dataclass(frozen=True)
class CallSuite:
    """The program defines `entry_point` (also "Solution.method"); it is called once a case, in one process."""

    entry_point: str
    cases: tuple[CallCase, ...]
    checker: Checker = Checker()
    limits: Limits = DEFAULT_LIMITS  # wall_s and cpu_s a case
    prelude: str = ""  # imports and helpers that stand before the program's source and can't satisfy `entry_point`
    isolate_cases: bool = False  # a process a case
    unwrap_single: bool = False  # APPS and TACO: an expected value may be wrapped in one list more
    needs_numpy: bool = False


@dataclass(frozen=True)
class AssertSuite:
    """Trusted test code that calls the program: HumanEval's `check(candidate)`, MBPP's asserts.

    The test code runs in a cell of its own; calls cross by the codec.
    """

    test: str  # defines check(candidate), or holds bare asserts
    entry_point: str
    limits: Limits = DEFAULT_LIMITS
    prelude: str = ""
    integrity: Integrity = Integrity.SPLIT  # IN_PROCESS: tests that need classes of the program
    updates_arguments: bool | None = None  # whether what a call leaves in its arguments goes back to the tests; None:
    # where they call the program and drop the result
    needs_numpy: bool = False


Suite = StdioSuite | CallSuite | AssertSuite


@dataclass(frozen=True)
class Submission:
    """A program to judge."""

    source: str
    language: str = "python"  # a key of languages.table.LANGUAGES


@dataclass(frozen=True)
class Options:
    """How to judge."""

    scoring: Scoring = Scoring.ALL_PASS
    run_all: bool = False  # go on after a failed case; implied by FRACTION
    reveal: bool = False  # whether details may show expected values: for people, never for a model
    min_tier: Tier = Tier.T2
    min_integrity: Integrity = Integrity.IN_PROCESS
    total_s: float = 20.0  # wall time of all cases together, without compilation


@dataclass(frozen=True)
class CaseResult:
    """One case."""

    index: int
    status: Status
    wall_s: float = 0.0
    cpu_s: float = 0.0
    max_rss_bytes: int = 0
    exit_code: int | None = None
    signal: int | None = None
    stdout_head: str = ""  # the first 2 kB
    stderr_head: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Timing:
    """Seconds by stage."""

    queued_s: float = 0.0
    setup_s: float = 0.0
    compile_s: float = 0.0
    run_s: float = 0.0
    judge_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True)
class Judgement:
    """What became of a submission. `score` is None unless `status` is the program's doing."""

    status: Status
    score: float | None = None
    cases: tuple[CaseResult, ...] = ()
    cases_total: int = 0
    compile: CaseResult | None = None
    tier: Tier = Tier.T0
    integrity: Integrity = Integrity.SPLIT
    flags: frozenset[Flag] = frozenset()
    timing: Timing = Timing()
    suite_digest: str = ""
    message: str = ""
    attempt: int = 1  # 2: the sandbox failed on the first one
    retry_after_s: float = 0.0  # of an overload: when there may be room
    unknown_suite: bool = False  # the digest names no suite here: it is to be uploaded

    @property
    def cases_passed(self) -> int:
        return sum(case.status is Status.PASSED for case in self.cases)

    @property
    def retryable(self) -> bool:
        return self.status in RETRYABLE
