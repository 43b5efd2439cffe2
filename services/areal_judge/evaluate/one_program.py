"""Trial of one program by one suite (`areal reward try`): a table of the cases, JSON, an exit code."""

import asyncio
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from areal.errors import ConfigError, DataError, ExitCode
from rich.console import Console
from rich.table import Table
from rich.text import Text

from areal_judge.evaluate.local_judge import Demands, local_judge
from areal_judge.judge.extract import program_of
from areal_judge.judge.formats.registry import suite_of
from areal_judge.judge.languages.table import LANGUAGES
from areal_judge.judge.suites import digest
from areal_judge.judge.values import CaseResult, Judgement, Options, Status, Submission, Suite
from areal_judge.sandbox.host.tiers import promise
from areal_judge.sandbox.values import Tier

MAX_FILE_BYTES = 256 << 20
FAILED = 1  # the program, not us
_SHOWN = 60  # cases in the table; of more, those that failed come first
_COLOURS = {Status.PASSED: "green", Status.SKIPPED: "dim"}
_OF_ARGUMENTS = frozenset({Status.INVALID_REQUEST, Status.REJECTED_TIER})


@dataclass(frozen=True)
class TrialOptions:
    """The command's arguments and options."""

    solution: Path
    suite: str
    format: str = "auto"
    language: str | None = None
    completion: bool = False
    stop: bool = False
    total_s: float = 60.0
    as_json: bool = False
    min_tier: str = "T2"
    highest_tier: str = "T4"


def try_command(asked: TrialOptions) -> int:
    """Judge and show; answers the exit code."""
    suite = read_suite(asked.suite, asked.format)
    judgement = asyncio.run(_judge(asked, _submission(asked), suite))
    if asked.as_json:
        print(json.dumps(facts(judgement)))
    else:
        show(judgement, Console())
    return exit_code(judgement)


async def _judge(asked: TrialOptions, submission: Submission, suite: Suite) -> Judgement:
    demands = Demands(Tier[asked.min_tier], Tier[asked.highest_tier], asked.min_tier == "T0")
    options = Options(run_all=not asked.stop, reveal=True, min_tier=demands.min_tier, total_s=asked.total_s)
    async with local_judge(demands, submission.language) as (judge, _):
        judgement = await judge.judge(submission, suite, options)
        return replace(judgement, suite_digest=digest(suite))


def _submission(asked: TrialOptions) -> Submission:
    suffix, fallback = asked.solution.suffix.lower(), "python" if asked.completion else ""
    language = asked.language or next((name for name, one in LANGUAGES.items() if suffix in one.suffixes), fallback)
    if language not in LANGUAGES:
        what = f"there is no language {language!r}" if language else f"which language is {asked.solution}?"
        raise ConfigError(what, fix=f"give --language with one of {', '.join(LANGUAGES)}")
    try:
        text = _read(asked.solution).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{asked.solution} is no UTF-8 text: {error}", fix="save it as UTF-8") from error
    if not asked.completion:
        return Submission(text, language)
    program = program_of(text, language)
    if program is None:
        raise DataError(f"{asked.solution} holds no {language} program", fix=f"put one into a ```{language} fence")
    return Submission(program, language)


def read_suite(place: str, format: str = "auto") -> Suite:
    """The suite of FILE or FILE:LINE: a suite or a row as JSON, or a line of JSON lines (the first unless given)."""
    path, line = _place(place)
    content = _read(path)
    where = str(path)
    if line is not None or path.suffix == ".jsonl":
        number = 1 if line is None else line
        lines = content.split(b"\n")
        if not 1 <= number <= len(lines) or not lines[number - 1].strip():
            raise DataError(f"{path} has no row in line {number}", fix=f"name a line like {path}:1")
        content, where = lines[number - 1], f"{path} line {number}"
    try:
        row: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where} is no JSON: {error}", fix="name a .json file, or a line of a .jsonl: FILE:LINE"
        ) from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: an object is due, not {type(row).__name__}", fix="give a suite or a dataset row")
    try:
        return suite_of(row, format)
    except DataError as error:
        raise DataError(f"{where}: {error.message}", fix=error.fix) from error


def _place(text: str) -> tuple[Path, int | None]:
    if not Path(text).exists():
        head, _, tail = text.rpartition(":")
        if head and tail.isdecimal():
            return Path(head), int(tail)
    return Path(text), None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror or error}", fix="name a file that exists") from error
    if len(content) > MAX_FILE_BYTES:
        raise DataError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB", fix="name a smaller file")
    return content


# ---- what came out


def exit_code(judgement: Judgement) -> int:
    """0 only for PASSED; 1 when the program is at fault; else whose fault it is."""
    if judgement.status is Status.PASSED:
        return int(ExitCode.DONE)
    if judgement.score is not None:
        return FAILED
    if judgement.status is Status.GOLD_ERROR:
        return int(ExitCode.DATA)
    return int(ExitCode.CONFIG if judgement.status in _OF_ARGUMENTS else ExitCode.INFRA)


def facts(judgement: Judgement) -> dict[str, Any]:
    """One JSON object; enumerations by their names."""
    return {
        "status": judgement.status.value,
        "score": judgement.score,
        "passed": judgement.cases_passed,
        "total": judgement.cases_total,
        "message": judgement.message,
        "tier": judgement.tier.name,
        "integrity": judgement.integrity.name,
        "flags": sorted(flag.value for flag in judgement.flags),
        "retryable": judgement.retryable,
        "suite_digest": judgement.suite_digest,
        "timing": asdict(judgement.timing),
        "compile": _case(judgement.compile) if judgement.compile else None,
        "cases": [_case(case) for case in judgement.cases],
    }


def _case(case: CaseResult) -> dict[str, Any]:
    return asdict(case) | {"status": case.status.value}


def show(judgement: Judgement, console: Console) -> None:
    """A table of the cases and what it comes to."""
    if judgement.compile is not None and judgement.compile.status is not Status.PASSED:
        console.print(Text(judgement.compile.stderr_head or judgement.compile.detail))
    elif judgement.cases:
        console.print(_table(judgement))
    verdict = Text(judgement.status.value, style=f"bold {_COLOURS.get(judgement.status, 'red')}")
    score = "no score" if judgement.score is None else f"score {judgement.score:g}"
    console.print(verdict, Text(f"{judgement.cases_passed}/{judgement.cases_total} cases, {score}"))
    if judgement.message and all(judgement.message != case.detail for case in judgement.cases):
        console.print(Text(judgement.message))
    console.print(_facts(judgement))


def _table(judgement: Judgement) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("case", "status", "wall", "cpu", "memory"):
        table.add_column(title, justify="left" if title == "status" else "right", no_wrap=True)
    table.add_column("what it did", overflow="fold")
    cases = list(judgement.cases)
    if len(cases) > _SHOWN:
        cases = sorted(cases, key=lambda case: case.status is Status.PASSED)[:_SHOWN]
    for case in cases:
        memory = f"{case.max_rss_bytes / (1 << 20):.0f} MiB" if case.max_rss_bytes else ""
        status = Text(case.status.value, style=_COLOURS.get(case.status, "red"))
        times = (f"{case.wall_s * 1e3:.1f} ms", f"{case.cpu_s * 1e3:.1f} ms")
        table.add_row(str(case.index), status, *times, memory, Text(_what(case)))
    if len(judgement.cases) > len(cases):
        table.add_row("…", f"{len(judgement.cases) - len(cases)} more", "", "", "", "")
    return table


def _what(case: CaseResult) -> str:
    if case.status in (Status.PASSED, Status.SKIPPED):
        return case.detail
    parts = [case.detail] if case.detail else _ending(case)
    if case.status is Status.WRONG_ANSWER and case.stdout_head:
        parts.append(f"printed {case.stdout_head[:200]!r}")
    return "; ".join(parts)


def _ending(case: CaseResult) -> list[str]:
    """What a process left, when nobody said it in words."""
    parts = []
    if case.exit_code:
        parts.append(f"exit code {case.exit_code}")
    if case.signal:
        parts.append(f"signal {case.signal}")
    if case.stderr_head.strip():
        parts.append(case.stderr_head.strip().splitlines()[-1][:300])
    return parts


def _facts(judgement: Judgement) -> Table:
    timing = judgement.timing
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_row("tier", f"{judgement.tier.name} {promise(judgement.tier).name}")
    grid.add_row("tests", "apart from the program" if judgement.integrity else "in the program's own process")
    if judgement.flags:
        grid.add_row("flags", Text(" ".join(sorted(flag.value for flag in judgement.flags)), style="yellow"))
    stages = {"setup": timing.setup_s, "compile": timing.compile_s, "run": timing.run_s, "judge": timing.judge_s}
    spent = ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in stages.items() if value)
    grid.add_row("time", f"{timing.total_s * 1e3:.1f} ms" + (f" ({spent})" if spent else ""))
    if judgement.suite_digest:
        grid.add_row("suite", judgement.suite_digest[:16])
    return grid
