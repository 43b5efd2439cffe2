"""HumanEval's programs, samples of a file, and judging many programs: no cell is started here."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from areal.errors import ConfigError, DataError, InfraError
from areal.values.pass_at_k import mean_pass_at_k, pass_at_k
from areal_judge.evaluate.asking import ModelAnswer, reference_answers, sampled_answers
from areal_judge.evaluate.suite_rows import SUITES, SuiteQuestion, questions, rows_of
from areal_judge.evaluate.suite_run import ASKED, AttemptOutcome, ProgramAttempt, judge_all
from areal_judge.judge.values import CaseResult, Judgement, Options, Status, StdioCase, StdioSuite, Submission, Suite
from areal_judge.sandbox.values import Tier
from hypothesis import given
from hypothesis import strategies as st
from support.wrong_completions import COMPLETIONS

SUITE = StdioSuite((StdioCase("", "1"),))
Write = Callable[..., Path]


@pytest.fixture(scope="module")
def tasks() -> list[SuiteQuestion]:
    suite = SUITES["humaneval"]
    return questions(suite, rows_of(suite, None, download=False, say=print), None)


def read(path: Path, asked: Sequence[SuiteQuestion], known: Sequence[SuiteQuestion] | None = None) -> list[ModelAnswer]:
    return sampled_answers(path, asked, {question.id for question in known or asked})


@given(st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_right_sample(data: st.DataObject) -> None:
    samples = data.draw(st.integers(1, 8))
    right, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    draws = list(itertools.combinations([index < right for index in range(samples)], k))
    assert pass_at_k(samples, right, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws), abs=1e-12)


def test_pass_at_k_of_many_samples_is_exact() -> None:
    assert pass_at_k(200, 1, 100) == 0.5
    assert pass_at_k(5, 0, 5) == 0.0
    assert pass_at_k(100_000, 1, 1) == 1e-5
    for count, right, k in ((0, 0, 1), (5, 6, 1), (5, 1, 6), (5, 1, 0)):
        with pytest.raises(ValueError, match="means nothing"):
            pass_at_k(count, right, k)


def test_pass_at_k_needs_k_samples_of_every_task() -> None:
    assert mean_pass_at_k([(2, 1), (4, 0)], 1) == 0.25
    assert mean_pass_at_k([(2, 1), (4, 0)], 3) is None
    assert mean_pass_at_k([], 1) is None


def test_all_problems_are_there(tasks: list[SuiteQuestion]) -> None:
    assert [task.id for task in tasks] == [f"HumanEval/{number}" for number in range(164)]


def test_every_program_is_python(tasks: list[SuiteQuestion]) -> None:
    programs = [answer.program for answer in reference_answers(tasks)]
    programs += [task.code + completion for task in tasks for completion in COMPLETIONS.values()]
    assert len(programs) == 164 * (1 + len(COMPLETIONS))
    for program in programs:
        compile(program, "program", "exec")


def test_only_code_that_has_a_solution_can_be_completed(write: Write) -> None:
    (asked,) = questions(SUITES["gsm8k"], [("row 1", {"question": "1+1?", "answer": "#### 2"})], None)
    with pytest.raises(ConfigError, match="no reference solutions"):
        reference_answers([asked])
    with pytest.raises(ConfigError, match="complete code"):
        read(write(sample(0)), [asked])


def test_wrong_completions_would_fool_a_grader_that_shares_their_process() -> None:
    def returned(kind: str) -> Any:
        names: dict[str, Any] = {}
        exec("def f():\n" + COMPLETIONS[kind], names)
        return names["f"]()

    assert returned("always_equal") == 41
    assert returned("equal_int") == [1, 2]
    assert returned("equal_list") == "no"
    assert isinstance(returned("equal_int"), int)
    assert returned("returns_none") is None
    with pytest.raises(SystemExit) as ended:
        returned("exits")
    assert ended.value.code == 0


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(*lines: Any) -> Path:
        path = tmp_path / "samples.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    return make


def sample(task: int, completion: str = "    pass\n", **more: Any) -> dict[str, Any]:
    return {"task_id": f"HumanEval/{task}", "completion": completion, **more}


def test_samples_are_numbered_by_task_and_follow_the_prompt(tasks: list[SuiteQuestion], write: Write) -> None:
    found = read(write(sample(0), sample(1), "", sample(0, "    return 1\n", passed=True)), tasks)
    assert [(one.question, one.sample) for one in found] == [(0, 0), (1, 0), (0, 1)]
    assert found[2].program == tasks[0].code + "    return 1\n"


def test_samples_may_be_compressed_and_beyond_the_limit(tasks: list[SuiteQuestion], tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(json.dumps(sample(task)).encode() + b"\n" for task in range(9))))
    assert [one.question for one in read(path, tasks[:2], tasks)] == [0, 1]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="can't read"):
        read(path, tasks)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: no JSON"),
        ("[" * 99_999, "line 2: no JSON"),
        ("[1]", "line 2: an object is due, not list"),
        ({"completion": "x"}, "line 2: 'task_id' is missing"),
        ({"task_id": "HumanEval/1"}, "line 2: 'completion' is missing"),
        ({"task_id": 1, "completion": "x"}, "line 2: 'task_id' is no text"),
        ({"task_id": "HumanEval/1", "completion": None}, "line 2: 'completion' is no text"),
        ({"task_id": "HumanEval/164", "completion": "x"}, "line 2: there is no task 'HumanEval/164'"),
        ({"task_id": "test/0", "completion": "x"}, "line 2: there is no task 'test/0'"),
        (" " * (5 << 20), "line 2: longer than"),
    ],
)
def test_a_broken_line_is_named_by_its_number(
    line: Any, message: str, tasks: list[SuiteQuestion], write: Write
) -> None:
    with pytest.raises(DataError, match=message) as refused:
        read(write(sample(0), line), tasks)
    assert "samples.jsonl" in str(refused.value)
    assert refused.value.fix


def test_a_file_without_samples_or_no_file_is_refused(tasks: list[SuiteQuestion], write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no samples"):
        read(write(""), tasks)
    with pytest.raises(ConfigError, match="can't read"):
        read(tmp_path / "nowhere.jsonl", tasks)
    with pytest.raises(ConfigError, match="can't read"):
        read(tmp_path, tasks)


class Scripted:
    """Judges by a list of statuses a program; its source is the key."""

    def __init__(self, **statuses: list[Status]) -> None:
        self.left = statuses
        self.running = self.most = 0

    async def judge(self, submission: Submission, suite: Suite, options: Options = Options()) -> Judgement:  # noqa: B008
        self.running += 1
        self.most = max(self.most, self.running)
        status = self.left[submission.source].pop(0)
        self.running -= 1
        score = {Status.PASSED: 1.0, Status.WRONG_ANSWER: 0.0}.get(status)
        return Judgement(status, score, (CaseResult(0, status, detail="returned 2"),), 1, tier=Tier.T3)


def attempt(source: str) -> ProgramAttempt:
    return ProgramAttempt(Submission(source), SUITE)


async def test_a_judgement_without_a_score_is_asked_for_again_and_never_counts_as_wrong() -> None:
    judge = Scripted(
        late=[Status.SANDBOX_ERROR, Status.REJECTED_OVERLOAD, Status.PASSED],
        never=[Status.SANDBOX_ERROR] * 9,
        gold=[Status.GOLD_ERROR] * 9,
        wrong=[Status.WRONG_ANSWER] * 9,
    )
    heard: list[AttemptOutcome] = []
    outcomes = await judge_all(judge, [attempt(name) for name in judge.left], Options(), 2, heard.append)
    assert [outcome.attempt.submission.source for outcome in outcomes] == ["late", "never", "gold", "wrong"]
    assert [outcome.judgement.score for outcome in outcomes] == [1.0, None, None, 0.0]
    assert len(heard) == 4
    assert len(judge.left["never"]) == 9 - ASKED
    assert len(judge.left["gold"]) == 8


async def test_where_nothing_can_be_judged_it_gives_up() -> None:
    judge = Scripted(never=[Status.SANDBOX_ERROR] * 999)
    with pytest.raises(InfraError, match="nothing can be judged here: SANDBOX_ERROR"):
        await judge_all(judge, [attempt("never")] * 164, Options(), 2)
    assert len(judge.left["never"]) > 900


async def test_no_more_are_judged_at_once_than_jobs() -> None:
    judge = Scripted(right=[Status.PASSED] * 9)
    await judge_all(judge, [attempt("right")] * 4, Options(), 1)
    assert judge.most == 1
