"""`areal reward try`: one program, one suite, a table of what every case did."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from areal_judge.evaluate.local_judge import Demands, local_judge
from areal_judge.judge.extract import program_of
from areal_judge.judge.formats.registry import suite_of
from areal_judge.judge.languages.table import LANGUAGES
from areal_judge.judge.suites import digest
from areal_judge.judge.values import Judgement, Options, Submission, Suite
from areal_judge.sandbox.values import Tier
from rich.console import Console

from areal.cli.verdict import as_json, exit_code, show
from areal.errors import ConfigError, DataError

MAX_FILE_BYTES = 256 << 20
_SUFFIXES: Mapping[str, str] = {
    ".py": "python", ".c": "c", ".cpp": "cpp", ".cc": "cpp", ".cxx": "cpp", ".js": "javascript", ".mjs": "javascript",
    ".sh": "bash", ".java": "java", ".go": "go", ".rs": "rust",
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
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


def try_command(asked: Asked) -> int:
    """Judge and show; answers the exit code."""
    suite = read_suite(asked.suite, asked.format)
    judgement = asyncio.run(_judge(asked, _submission(asked), suite))
    if asked.as_json:
        print(json.dumps(as_json(judgement)))
    else:
        show(judgement, Console())
    return exit_code(judgement)


async def _judge(asked: Asked, submission: Submission, suite: Suite) -> Judgement:
    demands = Demands(Tier[asked.min_tier], Tier[asked.highest_tier], asked.min_tier == "T0")
    options = Options(run_all=not asked.stop, reveal=True, min_tier=demands.min_tier, total_s=asked.total_s)
    async with local_judge(demands, submission.language) as (judge, _):
        judgement = await judge.judge(submission, suite, options)
        return replace(judgement, suite_digest=digest(suite))


def _submission(asked: Asked) -> Submission:
    fallback = "python" if asked.completion else ""
    language = asked.language or _SUFFIXES.get(asked.solution.suffix.lower(), fallback)
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
