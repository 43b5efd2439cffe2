"""The judge: from a submission and a suite to a judgement.

Owns what each failure means: a program's failure scores 0, a suite's is a GOLD_ERROR, a machine's is tried once more
and then a SANDBOX_ERROR; only the first of these has a score. Expected values and checkers stay in this process, except
for test code, which has a cell of its own.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from areal.errors import ArealError, ConfigError, DataError, InfraError
from cachetools import LRUCache

from areal_judge.judge import checkers, codec, flags, values
from areal_judge.judge.asserting import judge_asserts, judge_together
from areal_judge.judge.calling import judge_calls
from areal_judge.judge.drivers import TESTER
from areal_judge.judge.drivers.wire import REQUEST_BYTES
from areal_judge.judge.flags import integrity_of
from areal_judge.judge.languages.toolchains import Toolchains
from areal_judge.judge.program import case_of, of_output
from areal_judge.judge.record import AttemptRecord, shorten
from areal_judge.judge.validation import validate
from areal_judge.judge.values import CaseResult, Status, StdioCase, StdioSuite
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import Driver, Ending, Limits, ProgramRun, PythonScript, RunEnding

# ---- Judges a StdioSuite: a process a case, which reads its standard input and prints


_IN_THREAD_BYTES = 64 << 10  # a longer output is compared beside the event loop
_SHOWN_CHARS = 200
_REFUSALS = ("SyntaxError: ", "IndentationError: ", "TabError: ")
_PLACE = '  File "main.py", line '  # the sandbox calls every script so

RunOf = Callable[[bytes, Limits], ProgramRun]
_CHECKER_LIMITS = Limits(wall_s=10.0, cpu_s=10.0)
_ACCEPTED = 0
_REFUSED = frozenset({1, 2})  # testlib: wrong answer, presentation


async def judge_stdio(sandbox: Sandbox, run_of: RunOf, suite: StdioSuite, record: AttemptRecord) -> None:
    """Adds the cases to the record. Raises DataError for a suite that can't be judged, InfraError."""
    for case in suite.cases:
        if record.over:
            return
        if record.left_s <= 0:
            record.out_of_time()
            return
        limits = replace(suite.limits, wall_s=min(suite.limits.wall_s, record.left_s))
        run = run_of(stdin_of(case), limits)
        if isinstance(run.entry, PythonScript):
            run = replace(run, numpy=suite.needs_numpy, entry=replace(run.entry, prelude=suite.prelude))
        ended = await sandbox.run(run)
        record.spent_s += ended.wall_s
        record.saw(ended)
        if isinstance(run.entry, PythonScript) and (why := refusal(ended)):
            record.add(case_of(Status.COMPILE_ERROR, why, ended))
            record.skip_rest()
            return
        started = time.monotonic()
        result, exhausted = await _judged(sandbox, suite, case, ended, record)
        record.add(result)
        if exhausted:
            record.skip_rest()
        record.judge_s += time.monotonic() - started


def stdin_of(case: StdioCase) -> bytes:
    """A case's input, with a line end behind its last line."""
    text = case.stdin if not case.stdin or case.stdin.endswith("\n") else case.stdin + "\n"
    return text.encode("utf-8", "surrogateescape")


def refusal(ended: RunEnding) -> str:
    """What Python has against a script's source; empty where it has run. Pure.

    A script that Python refuses prints nothing, and of the script its error names a place only, no frame: no line has
    run. A program that pretends so fails the cases that follow too, and gains nothing.
    """
    if ended.ending is not Ending.EXITED or ended.exit_code != 1 or ended.stdout:
        return ""
    lines = ended.stderr.decode("utf-8", "replace").rstrip("\n").split("\n")
    places = [line.removeprefix(_PLACE) for line in lines if line.startswith(_PLACE)]
    if len(places) != 1 or not places[0].isdecimal() or not lines[-1].startswith(_REFUSALS):
        return ""  # a frame is "1, in <module>"
    return f"{lines[-1]} (line {places[0]})"


async def _judged(
    sandbox: Sandbox, suite: StdioSuite, case: StdioCase, ended: RunEnding, record: AttemptRecord
) -> tuple[CaseResult, bool]:
    """A case's result, and whether its output exhausted the checker."""
    status, detail = of_output(ended, ignore_exit_code=suite.ignore_exit_code)
    if status is not Status.PASSED:
        return case_of(status, detail, ended), False
    if suite.checker.name == checkers.CUSTOM:
        answer = case.expected.encode("utf-8", "surrogateescape")
        opinion = await _accepts(sandbox, suite.checker.program, stdin_of(case), ended.stdout, answer)
        if opinion.trouble:
            detail = f"the checker came to no verdict over this output: {opinion.trouble}"
            return case_of(Status.WRONG_ANSWER, detail, ended), opinion.exhausted
        right = opinion.accepted
    else:
        right = await _compared(suite, case, ended.stdout)
    if right:
        return case_of(Status.PASSED, "", ended), False
    detail = "wrong output"
    if record.options.reveal:
        detail += (
            f": expected {shorten(repr(case.expected), _SHOWN_CHARS)} for {shorten(repr(case.stdin), _SHOWN_CHARS)}"
        )
    return case_of(Status.WRONG_ANSWER, detail, ended), False


async def _compared(suite: StdioSuite, case: StdioCase, output: bytes) -> bool:
    try:
        if len(output) > _IN_THREAD_BYTES:
            return await asyncio.to_thread(checkers.check, suite.checker, output, case.expected)
        return checkers.check(suite.checker, output, case.expected)
    except KeyError:
        message = f"unknown checker {suite.checker.name!r}"
        raise DataError(message, fix=f"use one of {', '.join(checkers.NAMES)}") from None


@dataclass(frozen=True)
class CheckerOpinion:
    """What a checker says of an output."""

    accepted: bool = False
    trouble: str = ""  # why there is no verdict: it raised, took too long, ended with a code of its own
    exhausted: bool = False  # it ran into a limit, so each further output like this costs as much again


async def _accepts(sandbox: Sandbox, source: str, stdin: bytes, output: bytes, answer: bytes) -> CheckerOpinion:
    """Whether a suite's own checker program, in a cell of its own, accepts an output: only it may be led astray by one.

    One over which the checker comes to no verdict is refused: a program must not gain by printing it. Only a checker
    that comes to none over the expected answer either is at fault itself; where nothing is expected that can't be seen.

    Raises DataError for a checker at fault, InfraError.
    """
    opinion = await _asked(sandbox, source, stdin, output, answer)
    if opinion.trouble and answer.strip():
        of_answer = await _asked(sandbox, source, stdin, answer, answer)
        if of_answer.trouble:
            raise DataError(
                f"the custom checker gave no verdict: {of_answer.trouble}",
                fix="end it with 0 (accepted), 1 (wrong) or 2 (presentation)",
            )
    return opinion


async def _asked(sandbox: Sandbox, source: str, stdin: bytes, output: bytes, answer: bytes) -> CheckerOpinion:
    payload = codec.encode(("checker", source, stdin, output, answer), max_bytes=REQUEST_BYTES)
    async with sandbox.session(ProgramRun(Driver(TESTER, payload), limits=_CHECKER_LIMITS)) as session:
        ended = await session.finish(_CHECKER_LIMITS.wall_s)
    if ended.ending is Ending.EXITED and ended.exit_code == _ACCEPTED:
        return CheckerOpinion(accepted=True)
    if ended.ending is Ending.EXITED and ended.exit_code in _REFUSED and not ended.stderr.startswith(b"Traceback"):
        return CheckerOpinion()
    words = ended.stderr[-2000:].decode("utf-8", "replace").strip().splitlines()
    ended_itself = ended.ending in (Ending.EXITED, Ending.SIGNALED)
    how = f"exit code {ended.exit_code}" if ended.ending is Ending.EXITED else ended.ending.value
    return CheckerOpinion(trouble=f"{how}{': ' + words[-1] if words else ''}", exhausted=not ended_itself)


# ---- The judge: from a submission and a suite to a judgement


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
