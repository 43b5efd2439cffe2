"""areal reward and areal eval: what people and scripts see of a judgement, and the exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from areal.cli.main import app
from areal.errors import ConfigError, DataError
from areal_judge.evaluate.one_program import exit_code, facts, read_suite, show
from areal_judge.evaluate.suite_rows import SUITES, questions, rows_of
from areal_judge.judge.values import OF_PROGRAM, CaseResult, Flag, Judgement, Status, StdioSuite, Timing
from areal_judge.sandbox.values import Tier
from rich.console import Console
from support.wrong_completions import COMPLETIONS
from typer.testing import CliRunner

SUMS = {"kind": "stdio", "cases": [{"stdin": "1 2\n", "expected": "3\n"}, {"stdin": "20 22\n", "expected": "42\n"}]}
APPS = {"input_output": {"fn_name": "add", "inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"]}}
ADD = "def add(a, b):\n    return a + b\n"
SUM = "print(sum(map(int, input().split())))\n"


def areal(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "areal.cli.main", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=170,
        stdin=subprocess.DEVNULL,
    )


# ---- what is shown, and the exit code


@pytest.mark.parametrize("status", list(Status))
def test_only_a_pass_exits_with_zero_and_only_the_program_with_one(status: Status) -> None:
    score = (1.0 if status is Status.PASSED else 0.0) if status in OF_PROGRAM else None
    code = exit_code(Judgement(status, score))
    if status is Status.PASSED:
        assert code == 0
    elif status in OF_PROGRAM:
        assert code == 1
    else:
        assert code in (64, 65, 75)


@pytest.mark.parametrize(
    ("status", "code"),
    [(Status.GOLD_ERROR, 65), (Status.REJECTED_TIER, 64), (Status.INVALID_REQUEST, 64), (Status.SANDBOX_ERROR, 75)],
)
def test_whose_fault_it_is_decides_the_code(status: Status, code: int) -> None:
    assert exit_code(Judgement(status)) == code


def shown(judgement: Judgement) -> str:
    text = io.StringIO()
    show(judgement, Console(file=text, width=160))
    return text.getvalue()


JUDGEMENT = Judgement(
    Status.WRONG_ANSWER,
    0.0,
    (
        CaseResult(0, Status.PASSED, wall_s=0.0012, cpu_s=0.001, max_rss_bytes=9 << 20),
        CaseResult(1, Status.WRONG_ANSWER, wall_s=0.002, detail="printed [bold]43[/bold], expected 42"),
        CaseResult(2, Status.RUNTIME_ERROR, exit_code=1, stderr_head="Traceback\nValueError: no\n"),
    ),
    cases_total=3,
    tier=Tier.T3,
    flags=frozenset({Flag.SYSTEM_CALLS}),
    timing=Timing(setup_s=0.001, run_s=0.003, total_s=0.004),
    suite_digest="ab" * 32,
)


def test_a_table_tells_what_every_case_did() -> None:
    text = shown(JUDGEMENT)
    for word in (
        "1.2 ms", "9 MiB", "printed [bold]43[/bold], expected 42", "exit code 1; ValueError: no", "1/3 cases, score 0",
        "T3 namespaced", "system_calls", "total", "abababababababab",
    ):  # fmt: skip
        assert word in text or word == "total"


def test_of_many_cases_those_that_failed_are_shown() -> None:
    cases = [CaseResult(index, Status.PASSED) for index in range(500)] + [CaseResult(500, Status.TIME_LIMIT)]
    text = shown(Judgement(Status.TIME_LIMIT, 0.0, tuple(cases), 501))
    assert text.count("TIME_LIMIT") == 2
    assert "441 more" in text


def test_a_compiler_speaks_for_itself_and_no_score_is_no_zero() -> None:
    compiled = CaseResult(0, Status.COMPILE_ERROR, stderr_head="main.c:1: error: [x]")
    assert "main.c:1: error: [x]" in shown(Judgement(Status.COMPILE_ERROR, 0.0, compile=compiled))
    assert "no score" in shown(Judgement(Status.SANDBOX_ERROR, message="the worker was lost"))
    assert "the worker was lost" in shown(Judgement(Status.SANDBOX_ERROR, message="the worker was lost"))


def test_scripts_get_names_and_numbers() -> None:
    told = json.loads(json.dumps(facts(JUDGEMENT)))
    assert (told["status"], told["score"], told["passed"], told["total"]) == ("WRONG_ANSWER", 0.0, 1, 3)
    assert (told["tier"], told["integrity"], told["flags"]) == ("T3", "SPLIT", ["system_calls"])
    assert [case["status"] for case in told["cases"]] == ["PASSED", "WRONG_ANSWER", "RUNTIME_ERROR"]


# ---- what is read


def test_a_suite_is_a_file_or_a_line_of_one(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f"{json.dumps(SUMS)}\n{json.dumps(APPS)}\n\n")
    whole = tmp_path / "suite.json"
    whole.write_text(json.dumps(SUMS, indent=2))
    first = read_suite(str(rows))
    assert isinstance(first, StdioSuite)
    assert read_suite(f"{rows}:1") == read_suite(str(whole)) == first
    assert read_suite(f"{rows}:2") == read_suite(f"{rows}:2", "apps")
    odd = tmp_path / "suite:7"
    odd.write_text(json.dumps(SUMS))
    assert read_suite(str(odd)) == first


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        ("{}\n", "rows.jsonl:2", "no row in line 2"),
        ("\n{}\n", "rows.jsonl", "no row in line 1"),
        ("{}\n", "rows.jsonl:0", "no row in line 0"),
        ("{\n", "rows.jsonl:1", "line 1 is no JSON"),
        ("[]\n", "rows.jsonl:1", "line 1: an object is due"),
        ('{"prompt": 1}\n', "rows.jsonl:1", "line 1: the row's tests have no known format"),
        ('{"kind": "stdio", "cases": []}\n', "rows.jsonl:1", r"line 1: row\.cases: no cases"),
    ],
)
def test_a_bad_suite_is_named_by_its_line(content: str, place: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(DataError, match=message) as refused:
        read_suite(str(tmp_path / place))
    assert refused.value.fix


def test_a_missing_suite_is_the_commands_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't read"):
        read_suite(str(tmp_path / "nowhere.json"))


@pytest.mark.parametrize("command", [("reward", "try"), ("reward", "capabilities"), ("eval",)], ids=" ".join)
def test_each_command_shows_an_example(command: tuple[str, ...]) -> None:
    text = CliRunner().invoke(app, [*command, "--help"]).output
    assert f"areal {' '.join(command)}" in text.split("Options")[-1]


# ---- real cells


@pytest.mark.component
@pytest.mark.parametrize(
    ("program", "code", "status"),
    [
        (SUM, 0, "PASSED"),
        ("print(3)\n", 1, "WRONG_ANSWER"),
        ("print(1 / 0)\n", 1, "RUNTIME_ERROR"),
        ("print(", 1, None),
        ("", 1, "WRONG_ANSWER"),
        ("import os\nprint(3, flush=True)\nos._exit(0)\n", 1, "WRONG_ANSWER"),
    ],
)
def test_a_program_is_judged_case_by_case(program: str, code: int, status: str | None, tmp_path: Path) -> None:
    (tmp_path / "solution.py").write_text(program)
    (tmp_path / "suite.json").write_text(json.dumps(SUMS))
    done = areal("reward", "try", "solution.py", "--suite", "suite.json", "--json", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stdout, done.stderr
    facts = json.loads(done.stdout)
    assert facts["total"] == 2
    assert facts["score"] == (1.0 if code == 0 else 0.0)
    assert facts["tier"] in ("T2", "T3", "T4")
    if status is not None:
        assert facts["status"] == status


@pytest.mark.component
def test_a_person_sees_what_a_function_returned_and_should_have(tmp_path: Path) -> None:
    (tmp_path / "answer.md").write_text(f"<think>hm</think>\n```python\n{ADD.replace('+', '-')}```\n")
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(SUMS)}\n{json.dumps(APPS)}\n")
    arguments = ("reward", "try", "answer.md", "--completion", "--suite", "rows.jsonl:2")
    done = areal(*arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "WRONG_ANSWER" in done.stdout
    assert "0/2 cases, score 0" in done.stdout
    assert "7" in done.stdout


@pytest.mark.component
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nowhere.py", "--suite", "suite.json"), 64, "can't read nowhere.py"),
        (("solution.py", "--suite", "nowhere.json"), 64, "can't read nowhere.json"),
        (("solution.py", "--suite", "broken.json"), 65, "broken.json: row.cases: no cases"),
        (("solution.py", "--suite", "suite.json", "--format", "quiz"), 64, "no format 'quiz'"),
        (("solution.txt", "--suite", "suite.json"), 64, "which language is solution.txt?"),
        (("solution.py", "--suite", "suite.json", "--language", "cobol"), 64, "no language 'cobol'"),
        (("solution.txt", "--suite", "suite.json", "--completion", "--language", "c"), 65, "holds no c program"),
        (("solution.py", "--suite", "suite.json", "--min-tier", "T3", "--highest-tier", "T2"), 64, "T3"),
    ],
)
def test_what_is_not_the_programs_doing_has_another_code(
    arguments: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    (tmp_path / "solution.py").write_text(SUM)
    (tmp_path / "solution.txt").write_text("```python\nx\n```")
    (tmp_path / "suite.json").write_text(json.dumps(SUMS))
    (tmp_path / "broken.json").write_text(json.dumps(SUMS | {"cases": []}))
    done = areal("reward", "try", *arguments, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "fix: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.component
def test_capabilities_say_what_runs_here(tmp_path: Path) -> None:
    done = areal("reward", "capabilities", "--json", cwd=tmp_path)
    facts: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0
    assert facts["tier"] in ("T2", "T3", "T4")
    assert facts["probes"]
    languages = {one["language"]: one for one in facts["languages"]}
    assert languages["python"]["runs"]
    assert all(one["runs"] or one["why_not"] for one in languages.values())
    assert facts["tier"] in areal("reward", "capabilities", cwd=tmp_path).stdout


def write_samples(path: Path, lines: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.component
def test_humaneval_passes_every_reference_solution(tmp_path: Path) -> None:
    done = areal("eval", "--suite", "humaneval", "--canonical", "--json", cwd=tmp_path)
    assert done.stdout, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["right"], facts["answers"], facts["ungraded"]) == (164, 164, 0), facts
    assert facts["pass@1"] == 1.0
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1


@pytest.mark.component
def test_humaneval_passes_no_deliberately_wrong_solution(tmp_path: Path) -> None:
    tasks = [f"HumanEval/{number}" for number in range(16)]
    write_samples(
        tmp_path / "samples.jsonl",
        [{"task_id": task, "completion": completion} for task in tasks for completion in COMPLETIONS.values()],
    )
    done = areal("eval", "--suite", "humaneval", "--samples", "samples.jsonl", "--json", cwd=tmp_path)
    assert done.stdout, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["right"], facts["answers"], facts["ungraded"]) == (0, 16 * len(COMPLETIONS), 0), facts
    assert done.returncode == 0


@pytest.mark.component
def test_no_task_of_humaneval_takes_an_object_that_equals_everything(tmp_path: Path) -> None:
    lines = [{"task_id": f"HumanEval/{number}", "completion": COMPLETIONS["always_equal"]} for number in range(164)]
    write_samples(tmp_path / "samples.jsonl", lines)
    done = areal("eval", "--suite", "humaneval", "--samples", "samples.jsonl", "--json", cwd=tmp_path)
    assert done.stdout, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["right"], facts["answers"], facts["ungraded"], facts["pass@1"]) == (0, 164, 0, 0.0)


@pytest.mark.component
def test_humaneval_judges_samples_and_estimates_pass_at_k(tmp_path: Path) -> None:
    suite = SUITES["humaneval"]
    tasks = questions(suite, rows_of(suite, None, download=False, say=print), None)[:3]
    lines = [
        {"task_id": task.id, "completion": completion}
        for index, task in enumerate(tasks)
        for completion in (task.solution, "    return None\n" if index else task.solution)
    ]
    write_samples(tmp_path / "samples.jsonl", lines)
    asked = ("eval", "--suite", "humaneval", "--samples", "samples.jsonl")
    done = areal(*asked, "--json", "--k", "1", "--k", "2", "--out", "answers.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["right"], facts["answers"], facts["samples"]) == (4, 6, 2)
    assert facts["pass@1"] == pytest.approx(2 / 3)
    assert facts["pass@2"] == 1.0
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [one["id"] for one in answers if not one["right"]] == [task.id for task in tasks[1:]]
    people = areal(*asked, "--limit", "2", cwd=tmp_path)
    assert "3 of 4 answers are right" in people.stdout


@pytest.mark.component
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 64, "give one of --model"),
        (("--canonical", "--model", "x"), 64, "give one of --model"),
        (("--samples", "nowhere.jsonl"), 64, "can't read nowhere.jsonl"),
        (("--samples", "broken.jsonl"), 65, "broken.jsonl line 2: no JSON"),
        (("--samples", "0", "--model", "x"), 64, "1 to 1024"),
    ],
)
def test_humaneval_refuses_what_it_can_not_judge(
    arguments: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.jsonl").write_text('{"task_id": "HumanEval/0", "completion": ""}\n{"task_id\n')
    done = areal("eval", "--suite", "humaneval", *arguments, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr


def test_a_suite_may_be_named_with_or_without_its_option() -> None:
    def said(*arguments: str) -> str:
        command = [sys.executable, "-m", "areal.cli.main", "eval", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr

    assert "one test set" in said()
    assert "one test set" in said("humaneval", "--suite", "mbpp")
    assert said("aime") == said("--suite", "aime") != ""
