"""HumanEval's programs and counts: no cell is started here."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from areal.errors import ConfigError, DataError, InfraError
from areal.values.pass_at_k import mean_pass_at_k, pass_at_k
from areal_judge.evaluate import wrong
from areal_judge.evaluate.attempts import ASKED, Attempt, AttemptOutcome, judge_all
from areal_judge.evaluate.humaneval import Problem, canonical, deliberately_wrong, problems, samples
from areal_judge.evaluate.report import Report
from areal_judge.judge.values import (
    CaseResult,
    Flag,
    Integrity,
    Judgement,
    Options,
    Status,
    StdioCase,
    StdioSuite,
    Submission,
    Suite,
)
from areal_judge.sandbox.values import Tier
from hypothesis import given
from hypothesis import strategies as st

SUITE = StdioSuite((StdioCase("", "1"),))


@pytest.fixture(scope="module")
def tasks() -> dict[str, Problem]:
    return problems(10.0)


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


def test_all_problems_are_there(tasks: dict[str, Problem]) -> None:
    assert list(tasks) == [f"HumanEval/{number}" for number in range(164)]
    assert list(problems(1.0, limit=3)) == ["HumanEval/0", "HumanEval/1", "HumanEval/2"]
    assert {task.suite.limits.wall_s for task in tasks.values()} == {10.0}


def test_every_program_is_python(tasks: dict[str, Problem]) -> None:
    attempts = [*canonical(tasks), *deliberately_wrong(tasks)]
    assert len(attempts) == 164 * (1 + len(wrong.COMPLETIONS))
    for attempt in attempts:
        compile(attempt.submission.source, attempt.task_id, "exec")


def test_wrong_completions_would_fool_a_grader_that_shares_their_process() -> None:
    def returned(kind: str) -> Any:
        names: dict[str, Any] = {}
        exec("def f():\n" + wrong.COMPLETIONS[kind], names)
        return names["f"]()

    assert returned("always_equal") == 41
    assert returned("equal_int") == [1, 2]
    assert returned("equal_list") == "no"
    assert isinstance(returned("equal_int"), int)
    assert returned("returns_none") is None
    with pytest.raises(SystemExit) as ended:
        returned("exits")
    assert ended.value.code == 0


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(*lines: Any) -> Path:
        path = tmp_path / "samples.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    return make


def sample(task: int, completion: str = "    pass\n", **more: Any) -> dict[str, Any]:
    return {"task_id": f"HumanEval/{task}", "completion": completion, **more}


def test_samples_are_numbered_by_task_and_follow_the_prompt(tasks: dict[str, Problem], write: Write) -> None:
    read = samples(write(sample(0), sample(1), "", sample(0, "    return 1\n", passed=True)), tasks)
    assert [(one.task_id, one.sample) for one in read] == [("HumanEval/0", 0), ("HumanEval/1", 0), ("HumanEval/0", 1)]
    assert read[2].submission.source == tasks["HumanEval/0"].prompt + "    return 1\n"


def test_samples_may_be_compressed_and_beyond_the_limit(tasks: dict[str, Problem], tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(json.dumps(sample(task)).encode() + b"\n" for task in range(9))))
    few = problems(1.0, limit=2)
    assert [one.task_id for one in samples(path, few, tasks)] == ["HumanEval/0", "HumanEval/1"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="can't read"):
        samples(path, tasks)


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
def test_a_broken_line_is_named_by_its_number(line: Any, message: str, tasks: dict[str, Problem], write: Write) -> None:
    with pytest.raises(DataError, match=message) as refused:
        samples(write(sample(0), line), tasks)
    assert "samples.jsonl" in str(refused.value)
    assert refused.value.fix


def test_a_file_without_samples_or_no_file_is_refused(tasks: dict[str, Problem], write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no samples"):
        samples(write(""), tasks)
    with pytest.raises(ConfigError, match="can't read"):
        samples(tmp_path / "nowhere.jsonl", tasks)
    with pytest.raises(ConfigError, match="can't read"):
        samples(tmp_path, tasks)


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


def attempt(task_id: str, source: str, number: int = 0) -> Attempt:
    return Attempt(task_id, Submission(source), SUITE, sample=number)


async def test_a_judgement_without_a_score_is_asked_for_again_and_never_counts_as_wrong() -> None:
    judge = Scripted(
        late=[Status.SANDBOX_ERROR, Status.REJECTED_OVERLOAD, Status.PASSED],
        never=[Status.SANDBOX_ERROR] * 9,
        gold=[Status.GOLD_ERROR] * 9,
        wrong=[Status.WRONG_ANSWER] * 9,
    )
    heard: list[AttemptOutcome] = []
    attempts = [attempt(name, name) for name in judge.left]
    report = Report(await judge_all(judge, attempts, Options(), 2, heard.append), 4, 1.0)
    assert [outcome.attempt.task_id for outcome in report.outcomes] == ["late", "never", "gold", "wrong"]
    assert len(heard) == 4
    assert len(judge.left["never"]) == 9 - ASKED
    assert len(judge.left["gold"]) == 8
    assert (report.passed, report.total, len(report.unjudged), len(report.failures)) == (1, 4, 2, 1)
    facts = report.to_json((1,))
    assert (facts["passed"], facts["total"], facts["unjudged"], facts["tier"]) == (1, 4, 2, "T3")
    assert [line["task_id"] for line in facts["failures"]] == ["wrong"]
    assert facts["failures"][0]["message"] == "returned 2"
    assert "pass@1" not in facts  # two tasks have no judged sample
    json.dumps(facts)


async def test_where_nothing_can_be_judged_it_gives_up() -> None:
    judge = Scripted(never=[Status.SANDBOX_ERROR] * 999)
    with pytest.raises(InfraError, match="nothing can be judged here: SANDBOX_ERROR"):
        await judge_all(judge, [attempt("a", "never", i) for i in range(164)], Options(), 2)
    assert len(judge.left["never"]) > 900


async def test_a_report_estimates_pass_at_k_over_tasks() -> None:
    judge = Scripted(right=[Status.PASSED] * 9, wrong=[Status.WRONG_ANSWER] * 9)
    sources = {"a": ["right", "wrong"], "b": ["wrong", "wrong"]}
    attempts = [attempt(task, source, i) for task, each in sources.items() for i, source in enumerate(each)]
    report = Report(await judge_all(judge, attempts, Options(), 1), 164, 1.0)
    facts = report.to_json((1, 2, 3))
    assert (facts["pass@1"], facts["pass@2"], "pass@3" in facts) == (0.25, 0.5, False)
    assert (facts["attempted"], facts["tasks"]) == (2, 164)
    assert judge.most == 1


def test_an_empty_report_is_still_json() -> None:
    facts = Report([], 0, 0.0).to_json()
    assert (facts["passed"], facts["total"], facts["tier"]) == (0, 0, None)


def test_flags_and_the_weakest_tier_are_reported() -> None:
    flagged = Judgement(Status.WRONG_ANSWER, 0.0, flags=frozenset({Flag.EXITED_EARLY}), tier=Tier.T3)
    weak = Judgement(Status.PASSED, 1.0, tier=Tier.T2, integrity=Integrity.IN_PROCESS)
    report = Report([AttemptOutcome(attempt("a", ""), flagged), AttemptOutcome(attempt("b", ""), weak)], 2, 0.0)
    facts = report.to_json()
    assert (facts["flags"], facts["tier"], facts["integrity"]) == ({"exited_early": 1}, "T2", "IN_PROCESS")
