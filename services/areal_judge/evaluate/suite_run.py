"""`areal eval --suite …`: asks a model the questions of a test set, grades its answers, shows what came out."""

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from areal.engine.served import is_address, served
from areal.errors import ConfigError, ExitCode, InfraError
from areal.plan import remote
from areal.plan.layout import RunLayout
from areal.reward.verifiers.math import MathVerifier
from areal.v1 import reward_pb2 as pb
from areal.values.pass_at_k import RIGHT, sampled_figures
from areal.weights.adapter import ADAPTER_CONFIG
from areal.weights.exports import link_version
from areal.weights.manifest import MANIFEST_NAME, Manifest
from areal.weights.publish import versions
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from areal_judge.evaluate.asking import AnswerSampling, ModelAnswer, ask_all, reference_answers, sampled_answers
from areal_judge.evaluate.local_judge import Demands, local_judge
from areal_judge.evaluate.suite_rows import SUITES, SuiteQuestion, questions, rows_of
from areal_judge.judge.extract import program_of
from areal_judge.judge.judge import Judge
from areal_judge.judge.values import Judgement, Options, Submission, Suite
from areal_judge.mathematics import MathScorer
from areal_judge.sandbox.values import Tier

# ---- Grades of answers by the verifiers of training: mathematical equality, or tests of a program in the sandbox


ANSWER_FIELD = "answer"  # of the rows that a verifier of mathematics is given
_TOGETHER = 256  # answers graded in one call
_TOTAL_S = 60.0  # of one program with all of its tests


@dataclass(frozen=True)
class Grade:
    """What an answer is worth; `score` is None when it could not be graded."""

    score: float | None
    status: str


REFUSED, NO_PROGRAM = Grade(0.0, "REFUSED"), Grade(0.0, "NO_PROGRAM")


async def grade_math(
    questions: Sequence[SuiteQuestion],
    answers: Sequence[ModelAnswer],
    verifier: MathScorer,
    done: Callable[[int], None] = lambda count: None,
) -> list[Grade]:
    """Grades by mathematical equality with the expected answers. Stops `verifier` at the end."""
    grades: list[Grade] = []
    try:
        for start in range(0, len(answers), _TOGETHER):
            part = answers[start : start + _TOGETHER]
            items = [
                pb.ScoreItem(
                    verifier="math",
                    completion=answer.text,
                    row_json=orjson.dumps({ANSWER_FIELD: questions[answer.question].answer}),
                )
                for answer in part
            ]
            results = await verifier.score(items)
            grades += [
                REFUSED if answer.refused else _grade(result) for answer, result in zip(part, results, strict=True)
            ]
            done(len(part))
    finally:
        await verifier.stop()
    return grades


def _grade(result: pb.ScoreResult) -> Grade:
    match result.WhichOneof("outcome"):
        case "verdict":
            return Grade(result.verdict.score, result.verdict.status)
        case "score":
            return Grade(result.score, "SCORED")
        case _:
            return Grade(None, result.fault.message.partition("\n")[0] or "FAULT")


async def grade_code(
    questions: Sequence[SuiteQuestion],
    answers: Sequence[ModelAnswer],
    demands: Demands,
    done: Callable[[int], None] = lambda count: None,
) -> list[Grade]:
    """Grades by the tests of each question's program: 1 when all pass."""
    grades: dict[int, Grade] = {}
    attempts: list[ProgramAttempt] = []
    places: list[int] = []
    for place, answer in enumerate(answers):
        tests = questions[answer.question].tests
        assert tests is not None, "questions of programs have tests"
        program = answer.program or program_of(answer.text, "python")
        if program is None:
            grades[place] = REFUSED if answer.refused else NO_PROGRAM
            continue
        places.append(place)
        attempts.append(ProgramAttempt(Submission(program), tests))
    done(len(grades))
    if attempts:
        options = Options(min_tier=demands.min_tier, total_s=_TOTAL_S)
        async with local_judge(demands) as (judge, _):
            outcomes = await judge_all(judge, attempts, options, os.cpu_count() or 1, lambda outcome: done(1))
        for place, outcome in zip(places, outcomes, strict=True):
            grades[place] = Grade(outcome.judgement.score, outcome.judgement.status.value)
    return [grades[place] for place in range(len(answers))]


# ---- Judges many programs at once and keeps what came out, in order
# A judgement without a score says nothing about the program: it is asked for again, a few times, and then counts as
# unjudged, never as wrong.


GIVE_UP = 16  # attempts without one judgement
ASKED = 3  # times, while the judge says that asking again may help


@dataclass(frozen=True)
class ProgramAttempt:
    """One program, and what judges it."""

    submission: Submission
    suite: Suite


@dataclass(frozen=True)
class AttemptOutcome:
    """What became of an attempt."""

    attempt: ProgramAttempt
    judgement: Judgement


async def judge_all(
    judge: Judge,
    attempts: Sequence[ProgramAttempt],
    options: Options,
    jobs: int,
    done: Callable[[AttemptOutcome], None] = lambda outcome: None,
) -> list[AttemptOutcome]:
    """Judges attempts, at most `jobs` at a time; outcomes in the order of the attempts. `done` hears of each.

    Raises InfraError when nothing of the first ones could be judged: the rest would fare no better.
    """
    outcomes: dict[int, AttemptOutcome] = {}
    waiting = iter(range(len(attempts)))

    def hopeless() -> bool:
        return len(outcomes) >= GIVE_UP and all(outcome.judgement.retryable for outcome in outcomes.values())

    async def work() -> None:
        for index in waiting:
            outcomes[index] = AttemptOutcome(attempts[index], await _judge(judge, attempts[index], options))
            done(outcomes[index])
            if hopeless():
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(max(1, min(jobs, len(attempts)))):
            group.create_task(work())
    if len(outcomes) < len(attempts):
        first = next(iter(outcomes.values())).judgement
        what = first.message.partition("\n")[0] or first.status.value
        raise InfraError(f"nothing can be judged here: {what}", fix="see areal reward capabilities, and try again")
    return [outcomes[index] for index in range(len(attempts))]


async def _judge(judge: Judge, attempt: ProgramAttempt, options: Options) -> Judgement:
    for _ in range(ASKED - 1):
        judgement = await judge.judge(attempt.submission, attempt.suite, options)
        if judgement.score is not None or not judgement.retryable:
            return judgement
    return await judge.judge(attempt.submission, attempt.suite, options)


# ---- `areal eval --suite …`: asks a model the questions of a test set, grades its answers, shows what came out


FAILED = 1  # the reference solutions, not us
_SAMPLED_TEMPERATURE = 0.6  # unless given, of more than one answer a question


@dataclass(frozen=True)
class SuiteOptions:
    """The command's options."""

    suite: str
    model: str = ""  # unless answers are given
    data: Path | None = None
    download: bool = False
    samples: int = 1
    ks: tuple[int, ...] = ()
    limit: int | None = None
    temperature: float | None = None
    top_p: float = 1.0
    max_tokens: int = 2048
    seed: int = 0
    instruction: str | None = None
    concurrent: int = 32
    key: str = ""
    dtype: str = "float32"
    min_tier: str = "T2"
    out: Path | None = None
    as_json: bool = False
    given: Path | None = None  # a file of samples
    canonical: bool = False  # the reference solutions


def suite_command(asked: SuiteOptions) -> int:
    """Ask, grade and report; answers the exit code."""
    if asked.suite not in SUITES:
        raise ConfigError(f"there is no suite {asked.suite!r}", fix=f"use one of {', '.join(SUITES)}")
    if [bool(asked.model), asked.given is not None, asked.canonical].count(True) != 1:
        raise ConfigError("whose answers?", fix="give one of --model, --samples FILE.jsonl, --canonical")
    if asked.model and any(k > asked.samples for k in asked.ks):
        raise ConfigError(f"pass@{max(asked.ks)} needs as many samples", fix=f"give --samples {max(asked.ks)}")
    console = Console(stderr=True)
    suite = SUITES[asked.suite]
    rows = rows_of(suite, asked.data, download=asked.download, say=console.print)
    known = questions(suite, rows, asked.instruction)
    asking = known[: asked.limit]
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        policy = ""
        if asked.canonical:
            answers = reference_answers(asking)
        elif asked.given is not None:
            answers = sampled_answers(asked.given, asking, {question.id for question in known})
        else:
            address, policy = _model(asked, stack)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = stack.enter_context(Progress(*columns, console=console, transient=True))
        if asked.model:
            answers = asyncio.run(_answered(asked, asking, address, bar))
        grades = asyncio.run(_graded(asked, asking, answers, bar))
    report = _report(asked, asking, answers, grades) | {"seconds": round(time.monotonic() - began, 1)}
    if policy:
        report["policy"] = policy
    if asked.out is not None:
        _write(asked.out, asking, answers, grades)
    if asked.as_json:
        print(json.dumps(report))
    else:
        _show(report, Console())
    if report["ungraded"]:
        return int(ExitCode.INFRA)
    return FAILED if asked.canonical and report["right"] < len(answers) else int(ExitCode.DONE)


async def _answered(
    asked: SuiteOptions, asking: Sequence[SuiteQuestion], address: str, bar: Progress
) -> list[ModelAnswer]:
    total = len(asking) * asked.samples
    temperature = asked.temperature
    if temperature is None:
        temperature = 0.0 if asked.samples == 1 else _SAMPLED_TEMPERATURE
    sampling = AnswerSampling(asked.samples, temperature, asked.top_p, asked.max_tokens, asked.seed)
    answering = bar.add_task("answering", total=total)
    prompts = [question.prompt for question in asking]
    return await ask_all(address, asked.key, prompts, sampling, asked.concurrent, lambda answer: bar.advance(answering))


async def _graded(
    asked: SuiteOptions, asking: Sequence[SuiteQuestion], answers: Sequence[ModelAnswer], bar: Progress
) -> list[Grade]:
    graded = partial(bar.advance, bar.add_task("grading", total=len(answers)))
    if SUITES[asked.suite].grader == "math":
        return await grade_math(asking, answers, MathVerifier(ANSWER_FIELD), graded)
    demands = Demands(Tier[asked.min_tier], allow_unsafe=asked.min_tier == "T0", zygotes=4)
    return await grade_code(asking, answers, demands, graded)


# ---- the model


def _model(asked: SuiteOptions, stack: contextlib.ExitStack) -> tuple[str, str]:
    """A server's address, and the policy where a run's published version is what it serves."""
    named, policy = asked.model, ""
    if is_address(named):
        return named.rstrip("/").removesuffix("/v1"), policy
    if remote.is_remote(named) and not asked.download and remote.cached(named) is None:
        raise ConfigError(f"this machine doesn't have {named}", fix="let it be downloaded: --download")
    layout = RunLayout(Path(named))
    if layout.resolved.is_file() and not layout.model.is_dir():
        named, policy = stack.enter_context(_newest_version(layout))
    return stack.enter_context(served(named, ["--dtype", asked.dtype])), policy


@contextlib.contextmanager
def _newest_version(layout: RunLayout) -> Iterator[tuple[str, str]]:
    """The newest whole version of a run that goes on: its files under another name, so that it stays while needed."""
    for policy in reversed(versions(layout.weights)):
        version = layout.weights / policy.directory
        with contextlib.suppress(OSError):
            if Manifest.from_bytes((version / MANIFEST_NAME).read_bytes()).base is not None:
                continue
            if (version / ADAPTER_CONFIG).exists():
                raise ConfigError(
                    f"the run {layout.root} publishes adapters, which are no models",
                    fix="wait for its end, or let it export models: export.intervalSteps",
                )
            holder = Path(tempfile.mkdtemp(prefix=".evaluated-", dir=layout.root))
            try:
                link_version(version, holder / policy.directory)
                yield str(holder / policy.directory), str(policy)
                return
            finally:
                shutil.rmtree(holder, ignore_errors=True)
    raise ConfigError(f"the run {layout.root} has published nothing yet", fix="wait, or name a model directory")


# ---- what came out


def _report(
    asked: SuiteOptions, asking: Sequence[SuiteQuestion], answers: Sequence[ModelAnswer], grades: Sequence[Grade]
) -> dict[str, Any]:
    scores: list[list[float]] = [[] for _ in asking]
    for answer, grade in zip(answers, grades, strict=True):
        if grade.score is not None:
            scores[answer.question].append(grade.score)
    samples = max(map(len, scores))
    ks = asked.ks or tuple({1, asked.samples})
    return {
        "suite": asked.suite,
        "model": asked.model or ("canonical" if asked.canonical else str(asked.given)),
        "questions": len(asking),
        "samples": samples,
        **{name: round(value, 6) for name, value in sampled_figures(scores, samples, ks).items()},
        "answers": len(answers),
        "right": sum(grade.score is not None and grade.score >= RIGHT for grade in grades),
        "refused": sum(bool(answer.refused) for answer in answers),
        "ungraded": sum(grade.score is None for grade in grades),
        "truncated": sum(answer.finish == "length" for answer in answers),
        "tokens": round(sum(answer.tokens for answer in answers) / len(answers), 1),
        "statuses": dict(Counter(grade.status for grade in grades)),
    }


def _write(
    path: Path, asking: Sequence[SuiteQuestion], answers: Sequence[ModelAnswer], grades: Sequence[Grade]
) -> None:
    """Every answer with its grade, a line each."""
    lines = [
        {
            "id": asking[answer.question].id or str(answer.question),
            "sample": answer.sample,
            "score": grade.score,
            "right": grade.score is not None and grade.score >= RIGHT,
            "status": grade.status,
            "finish": answer.finish,
            "text": answer.text or answer.refused,
        }
        for answer, grade in zip(answers, grades, strict=True)
    ]
    try:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error.strerror}", fix="name another file with --out") from error


def _show(report: dict[str, Any], console: Console) -> None:
    console.print(
        f"{report['suite']} · {report['model']}{' ' + report['policy'] if 'policy' in report else ''} · "
        f"{report['questions']} questions × {report['samples']}",
        highlight=False,
    )
    for name, value in report.items():
        if "@" in name:
            console.print(f"{name:>9}  {value:.4f}", style="bold", highlight=False)
    for name, what in (
        ("refused", "answers refused by the server; they count as wrong"),
        ("truncated", "answers cut off at --max-tokens"),
        ("ungraded", "answers that could not be graded; they count as neither"),
    ):
        if report[name]:
            console.print(f"{report[name]:>9}  {what}", highlight=False)
    console.print(f"{report['right']} of {report['answers']} answers are right", highlight=False)
    console.print(f"{report['tokens']} tokens an answer, {report['seconds']} s", style="dim", highlight=False)
