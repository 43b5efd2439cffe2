"""The judge: from a submission and a suite to a judgement.

Owns what each failure means: a program's failure scores 0, a suite's is a GOLD_ERROR, a machine's is tried once more
and then a SANDBOX_ERROR; only the first of these has a score. Expected values and checkers stay in this process, except
for test code, which has a cell of its own.
"""

import time

from areal.errors import ArealError, ConfigError, DataError, InfraError
from cachetools import LRUCache

from areal_judge.judge import flags, values
from areal_judge.judge.asserting import judge_asserts
from areal_judge.judge.calling import judge_calls
from areal_judge.judge.flags import integrity_of
from areal_judge.judge.languages.toolchains import Toolchains
from areal_judge.judge.record import AttemptRecord, shorten
from areal_judge.judge.stdio import RunOf, judge_stdio
from areal_judge.judge.together import judge_together
from areal_judge.judge.validation import validate
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import ProgramRun, PythonScript

_PYTHON = "python"
_REMEMBERED = 256  # suites found fit to judge, by identity


class Judge:
    """Judges submissions in a sandbox. Lives on one event loop; remembers which suites it has validated."""

    def __init__(self, sandbox: Sandbox, toolchains: Toolchains | None = None, *, attempts: int = 2) -> None:
        """Without toolchains only Python is judged. `attempts`: how often in all, when the sandbox fails."""
        self._sandbox = sandbox
        self._toolchains = toolchains
        self._attempts = attempts
        self._fit: LRUCache[int, tuple[values.Suite, values.Integrity]] = LRUCache(_REMEMBERED)

    async def judge(
        self, submission: values.Submission, suite: values.Suite, options: values.Options | None = None
    ) -> values.Judgement:
        """Never raises for the program's, the suite's or the sandbox's sake; a cancelled task ends its runs."""
        options, tier = options or values.Options(), self._sandbox.powers.tier
        started, attempt = time.monotonic(), 1

        def without_score(status: values.Status, error: ArealError) -> values.Judgement:
            timing = values.Timing(total_s=time.monotonic() - started)
            return values.Judgement(status, tier=tier, timing=timing, message=shorten(str(error)), attempt=attempt)

        try:
            integrity = self._check(suite)
        except DataError as error:
            return without_score(values.Status.GOLD_ERROR, error)
        if tier < options.min_tier:
            low = ConfigError(f"tier {options.min_tier.name} is asked for, this sandbox has {tier.name}")
            return without_score(values.Status.REJECTED_TIER, low)
        if why := _unfit(submission, suite, integrity, options):
            return without_score(values.Status.INVALID_REQUEST, why)
        while True:
            record = AttemptRecord(options, len(suite.cases) if not isinstance(suite, values.AssertSuite) else 1)
            record.integrity = integrity
            try:
                await self._run(submission, suite, record)
                break
            except DataError as error:
                return without_score(values.Status.GOLD_ERROR, error)
            except ConfigError as error:
                return without_score(values.Status.REJECTED_TIER, error)
            except InfraError as error:
                if any(case.status is values.Status.TIME_LIMIT for case in record.cases) and record.over:
                    break  # it has had its time: what failed came after
                if attempt >= self._attempts:
                    return without_score(values.Status.SANDBOX_ERROR, error)
                attempt += 1
        record.flags |= flags.of_source(submission.source, submission.language)
        return record.judgement(tier, time.monotonic() - started, attempt)

    async def _run(self, submission: values.Submission, suite: values.Suite, record: AttemptRecord) -> None:
        if isinstance(suite, values.StdioSuite):
            run_of = await self._ready(submission, record)
            if run_of is not None:
                await judge_stdio(self._sandbox, run_of, suite, record)
        elif isinstance(suite, values.CallSuite):
            await judge_calls(self._sandbox, submission, suite, record)
        elif suite.integrity is values.Integrity.IN_PROCESS:
            await judge_together(self._sandbox, submission, suite, record)
        else:
            async with self._sandbox.pair() as pair:
                await judge_asserts(pair, submission, suite, record)

    async def _ready(self, submission: values.Submission, record: AttemptRecord) -> RunOf | None:
        """Compiles. None when the compiler refuses it: the record then says so."""
        toolchains = self._toolchains
        if toolchains is None:
            if submission.language != _PYTHON:
                raise ConfigError(f"{submission.language} can't run here", fix="give the judge toolchains")
            return lambda stdin, limits: ProgramRun(PythonScript(submission.source), stdin=stdin, limits=limits)
        started = time.monotonic()
        compiled = await toolchains.compiled(submission)
        record.compile_s = time.monotonic() - started
        record.compile = compiled.result
        if compiled.ok:
            return lambda stdin, limits: toolchains.run_of(compiled, stdin, limits)
        if compiled.result is not None:
            record.add(compiled.result)
        record.skip_rest()
        return None

    def _check(self, suite: values.Suite) -> values.Integrity:
        """What the suite's code lets it claim. The same object is looked at once.

        Raises DataError for a suite that could pass or fail any program.
        """
        known = self._fit.get(id(suite))
        if known is None or known[0] is not suite:
            validate(suite)
            known = self._fit[id(suite)] = (suite, integrity_of(suite))
        return known[1]


def _unfit(
    submission: values.Submission, suite: values.Suite, integrity: values.Integrity, options: values.Options
) -> ArealError | None:
    """What makes a request one that can't be met, whatever the program is."""
    if not isinstance(suite, values.StdioSuite) and submission.language != _PYTHON:
        return DataError(f"functions of {submission.language} can't be called", fix="use a StdioSuite, or Python")
    if integrity < options.min_integrity:
        fix = "write tests that need values only, or allow IN_PROCESS"
        evaluating = not isinstance(suite, values.AssertSuite) or suite.integrity is values.Integrity.SPLIT
        why = "evaluate what the program returns" if evaluating else "share the program's process"
        return DataError(f"these tests {why}, which the request refuses", fix=fix)
    return None
