"""Record of a judgement under way: cases, flags and times so far, and what follows from them.

Pure. Owns the rules from cases to a judgement: the first case that did not pass gives the status, a score exists only
for a status of the program, nothing passes without a case that ran.
"""

from dataclasses import replace

from areal_judge.judge.values import (
    OF_PROGRAM,
    CaseResult,
    Flag,
    Integrity,
    Judgement,
    Options,
    Scoring,
    Status,
    Timing,
)
from areal_judge.sandbox.values import Ending, RunEnding, Tier

HEAD_BYTES = 2048
LIMITS = {
    Ending.WALL_LIMIT: (Status.TIME_LIMIT, "the program took too long"),
    Ending.CPU_LIMIT: (Status.TIME_LIMIT, "the program took too much CPU time"),
    Ending.MEMORY_LIMIT: (Status.MEMORY_LIMIT, "the program took too much memory"),
    Ending.OUTPUT_LIMIT: (Status.OUTPUT_LIMIT, "the program printed too much"),
    Ending.DISK_LIMIT: (Status.DISK_LIMIT, "the program wrote too much"),
    Ending.PROCESS_LIMIT: (Status.PROCESS_LIMIT, "the program started too many processes"),
}
DETAIL_CHARS = 600


class AttemptRecord:
    """One attempt to judge a submission. Cases are added in order."""

    def __init__(self, options: Options, total: int) -> None:
        self.options = options
        self.total = total
        self.cases: list[CaseResult] = []
        self.failed = False  # whether a case did not pass
        self.flags: set[Flag] = set()
        self.integrity = Integrity.SPLIT
        self.tier: Tier | None = None
        self.compile: CaseResult | None = None
        self.spent_s = 0.0  # of the program's wall time, against `total_s`
        self.setup_s = 0.0
        self.compile_s = 0.0
        self.judge_s = 0.0

    @property
    def runs_all(self) -> bool:
        return self.options.run_all or self.options.scoring is Scoring.FRACTION

    @property
    def left_s(self) -> float:
        """Wall time that the cases may still take together."""
        return self.options.total_s - self.spent_s

    @property
    def over(self) -> bool:
        """Whether no more case is to run."""
        return len(self.cases) >= self.total or (self.failed and not self.runs_all)

    @property
    def may_pass(self) -> bool:
        """Whether the last case has passed so far, so that how its program ends still counts."""
        return bool(self.cases) and self.cases[-1].status is Status.PASSED

    def add(self, case: CaseResult) -> None:
        self.cases.append(replace(case, index=len(self.cases), detail=shorten(case.detail)))
        self.failed = self.failed or case.status is not Status.PASSED

    def fail_last(self, case: CaseResult) -> None:
        """The last case turns out not to have passed after all."""
        if self.may_pass:
            last = self.cases.pop()
            self.add(replace(case, wall_s=last.wall_s))

    def ended_with(self, ended: RunEnding) -> None:
        """The process of the last cases is over: what it printed goes with the last one that ran.

        A program that hit a limit of its whole process may have noticed it first, as an exception of its own.
        """
        self.saw(ended)
        last = next((case for case in reversed(self.cases) if case.status is not Status.SKIPPED), None)
        if last is None:
            return
        case = replace(last, stdout_head=head(ended.stdout), stderr_head=head(ended.stderr))
        if last.status is Status.RUNTIME_ERROR and ended.ending in LIMITS:
            status, detail = LIMITS[ended.ending]
            case = replace(case, status=status, detail=detail)
        self.cases[last.index] = case

    def skip_rest(self) -> None:
        """What the last case said holds for all that follow."""
        while len(self.cases) < self.total:
            self.cases.append(CaseResult(len(self.cases), Status.SKIPPED))

    def out_of_time(self) -> None:
        """The cases that are left have no time."""
        self.add(CaseResult(0, Status.TIME_LIMIT, detail=f"all cases together took over {self.options.total_s:g} s"))
        self.skip_rest()

    def saw(self, ended: RunEnding) -> None:
        """Takes over what a run tells about itself."""
        self.setup_s += ended.setup_s
        self.tier = ended.tier
        self.flags |= {Flag.OUTPUT_CAP} if ended.ending is Ending.OUTPUT_LIMIT else set()

    def judgement(self, tier: Tier, total_s: float, attempt: int) -> Judgement:
        """The answer. Cases that did not run are SKIPPED."""
        self.skip_rest()
        status = next((case.status for case in self.cases if case.status is not Status.PASSED), Status.PASSED)
        if not self.cases:
            status = self.compile.status if self.compile else Status.GOLD_ERROR
        passed = sum(case.status is Status.PASSED for case in self.cases)
        score = None
        if status in OF_PROGRAM:
            fraction = passed / self.total if self.total else 0.0
            score = fraction if self.options.scoring is Scoring.FRACTION else float(status is Status.PASSED)
        first = next((case for case in self.cases if case.status is status), None)
        return Judgement(
            status=status,
            score=score,
            cases=tuple(self.cases),
            cases_total=self.total,
            compile=self.compile,
            tier=self.tier if self.tier is not None else tier,
            integrity=self.integrity,
            flags=frozenset(self.flags),
            timing=Timing(
                setup_s=self.setup_s,
                compile_s=self.compile_s,
                run_s=self.spent_s,
                judge_s=self.judge_s,
                total_s=total_s,
            ),
            message=first.detail if first is not None and status is not Status.PASSED else "",
            attempt=attempt,
        )


def shorten(text: str, most: int = DETAIL_CHARS) -> str:
    """At most so many characters, printable ones."""
    kept = text if len(text) <= most else text[: most - 1] + "…"
    return kept if kept.isascii() else kept.encode("utf-8", "replace").decode("utf-8")


def head(data: bytes) -> str:
    """The beginning of what a program printed, as text."""
    return data[:HEAD_BYTES].decode("utf-8", "replace")
