"""Public test sets: rows of the true forms, figures against exact enumeration, grading without a model."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import pytest
from areal.errors import ConfigError, DataError
from areal.reward.verifiers.math import MathVerifier
from areal.values.pass_at_k import sampled_figures
from areal_judge.evaluate.asking import ModelAnswer
from areal_judge.evaluate.suite_rows import SUITES, SuiteQuestion, questions, rows_of
from areal_judge.evaluate.suite_run import ANSWER_FIELD, grade_math
from hypothesis import given
from hypothesis import strategies as st

GSM8K = {"question": "How many eggs?", "answer": "He has 1,000 + 80.\n<<1000+80=1080>>\n#### 1,080"}
MATH = {"problem": "What is $1/2+1/2$?", "solution": "It is $\\boxed{1}$.", "level": "Level 1", "subject": "Algebra"}
AIME = {"id": 60, "problem": "Find x.", "answer": "204", "url": "u", "year": "2024"}
LCB = {
    "question_id": "abc301_a",
    "question_content": "Print the sum.",
    "starter_code": "",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
    "private_test_cases": "",
    "metadata": "{}",
}


def read(suite, *rows, instruction=None):
    return questions(SUITES[suite], [(f"row {number}", row) for number, row in enumerate(rows)], instruction)


@pytest.mark.parametrize(
    ("suite", "row", "prompt", "answer"),
    [
        ("gsm8k", GSM8K, "How many eggs?", "1080"),
        ("math", MATH, "What is $1/2+1/2$?", "It is $\\boxed{1}$."),
        ("math", {**MATH, "answer": "1"}, "What is $1/2+1/2$?", "1"),
        ("aime", AIME, "Find x.", "204"),
        ("aime", {"Problem": "Find x.", "Answer": 204, "ID": "2024-I-1"}, "Find x.", "204"),
    ],
)
def test_a_row_of_the_true_form_becomes_a_question(suite, row, prompt, answer):
    (plain,) = read(suite, row, instruction="")
    assert (plain.prompt, plain.answer) == (prompt, answer)
    (usual,) = read(suite, row)
    assert usual.prompt.startswith(f"{prompt}\n\n")
    assert "\\boxed{}" in usual.prompt


PUBLISHED = Path(__file__).parent / "suites"


def published(suite: str, name: str) -> list[SuiteQuestion]:
    """The questions of a small file of the published form."""
    rows = rows_of(SUITES[suite], PUBLISHED / name, download=False, say=lambda words: None)
    return questions(SUITES[suite], rows, None)


@pytest.mark.parametrize(
    ("suite", "name", "right", "wrong"),
    [
        ("gsm8k", "gsm8k.jsonl", ["\\boxed{72}", "\\boxed{1,080}"], ["\\boxed{48}", "\\boxed{108}"]),
        ("math", "math", [r"\boxed{\dfrac{1}{2}}", r"\boxed{(3, \pi/2)}"], [r"\boxed{2}", r"\boxed{(3,\pi)}"]),
        ("aime", "aime.csv", [r"\boxed{60}", r"\boxed{25}"], [r"\boxed{61}", r"\boxed{250}"]),
        ("aime", "aime.jsonl", [r"\boxed{204}", r"\boxed{73}"], [r"\boxed{20}", r"\boxed{37}"]),
    ],
)
def test_published_files_of_mathematics_are_graded(suite, name, right, wrong):
    asked = published(suite, name)
    assert len(asked) == len(right)
    for texts, score in ((right, 1.0), (wrong, 0.0)):
        answers = [ModelAnswer(place, 0, text) for place, text in enumerate(texts)]
        assert [grade.score for grade in asyncio.run(grade_math(asked, answers, MathVerifier(ANSWER_FIELD)))] == [
            score
        ] * len(texts), texts


def test_published_files_of_programs_have_their_tests():
    stdin, functional = published("livecodebench", "livecodebench.jsonl")
    assert (len(stdin.tests.cases), len(functional.tests.cases)) == (3, 3), "public and packed private cases"
    assert "reads from standard input" in stdin.prompt
    assert "def minimumSum(self" in functional.prompt
    (humaneval,) = published("humaneval", "humaneval.jsonl")
    assert (humaneval.id, humaneval.tests.entry_point) == ("HumanEval/2", "truncate_number")
    assert humaneval.prompt.startswith("```python\ndef truncate_number")
    for name in ("mbpp.jsonl", "mbpp-sanitized.jsonl"):
        (mbpp,) = published("mbpp", name)
        assert mbpp.tests.entry_point == "remove_Occ"
        assert 'assert remove_Occ("hello","l") == "heo"' in mbpp.prompt


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("Question,Answer\nq\n", "1 values for 2 columns"),
        ('Question,Answer\n"q,1\n', r"rows\.csv:2: unexpected end of data"),
        ("Question,Answer\nq,1,2\n", "3 values for 2 columns"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, content, said):
    (tmp_path / "rows.csv").write_text(content)
    with pytest.raises(DataError, match=said):
        list(rows_of(SUITES["aime"], tmp_path / "rows.csv", download=False, say=lambda words: None))


def test_a_program_s_row_has_its_tests_and_its_starter_code():
    (question,) = read("livecodebench", LCB)
    assert (question.id, len(question.tests.cases)) == ("abc301_a", 1)
    functional = json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}])
    row = {**LCB, "starter_code": "class Solution:\n    def add(self, a, b):", "public_test_cases": functional}
    (question,) = read("livecodebench", {**row, "metadata": '{"func_name": "add"}'})
    assert "def add(self, a, b)" in question.prompt


@pytest.mark.parametrize(
    ("suite", "row", "said"),
    [
        ("gsm8k", {"question": "q", "answer": "18"}, "no ####"),
        ("gsm8k", AIME, "no question"),
        ("math", {"problem": "p", "solution": "It is 1."}, "no answer, and its solution has no"),
        ("aime", {"problem": "p", "answer": ""}, "no solution"),
        ("livecodebench", {**LCB, "public_test_cases": "[]"}, "public_test_cases"),
    ],
)
def test_a_row_of_another_form_is_refused_with_its_place(suite, row, said):
    with pytest.raises(DataError, match=f"row 1 is no row of {suite}: .*{said}"):
        read(suite, {"gsm8k": GSM8K, "math": MATH, "aime": AIME, "livecodebench": LCB}[suite], row)


def test_rows_come_from_a_file_or_nothing_is_guessed(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(GSM8K) + "\n")
    said = []
    assert [row for _, row in rows_of(SUITES["gsm8k"], file, download=False, say=said.append)] == [GSM8K]
    for data, what in ((tmp_path / "none.jsonl", "there is no file"), (tmp_path, "there is no .json file")):
        with pytest.raises(ConfigError, match=what):
            list(rows_of(SUITES["gsm8k"], data, download=False, say=said.append))
    (tmp_path / "rows.txt").write_text("question,answer\n")
    with pytest.raises(ConfigError, match=r"no \.jsonl, \.csv or \.parquet"):
        list(rows_of(SUITES["gsm8k"], tmp_path / "rows.txt", download=False, say=said.append))
    with pytest.raises(ConfigError, match="this machine has no rows of gsm8k") as caught:
        list(rows_of(SUITES["gsm8k"], None, download=False, say=said.append))
    assert "--download" in caught.value.fix
    assert said == []


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4), min_size=1, max_size=4))
def test_pass_at_k_is_the_share_of_all_draws_of_k_that_have_a_right_answer(rows):
    figures = sampled_figures(rows, 4, (1, 2, 4))
    for k in (1, 2, 4):
        shares = [[any(score >= 1 for score in draw) for draw in itertools.combinations(row, k)] for row in rows]
        exact = sum(sum(share) / len(share) for share in shares) / len(rows)
        assert figures[f"pass@{k}"] == pytest.approx(exact, abs=1e-12)
    assert figures["avg@4"] == pytest.approx(sum(map(sum, rows)) / (4 * len(rows)))


def test_a_row_with_too_few_answers_leaves_a_pass_at_k_out_and_none_says_nothing():
    assert sampled_figures([[1.0, 0.0], [1.0]], 2, (1, 2)) == {"avg@2": 0.75, "pass@1": 0.75}
    assert sampled_figures([[], []], 2, (1,)) == {}


def test_mathematics_is_graded_and_what_the_server_refused_is_wrong():
    asked = [SuiteQuestion("", "", "1080"), SuiteQuestion("", "", "It is $\\boxed{12}$.")]
    answers = [
        ModelAnswer(0, 0, "It is \\boxed{1080}."),
        ModelAnswer(0, 1, "The answer is 7."),
        ModelAnswer(1, 0, refused="too long"),
        ModelAnswer(1, 1, "\\boxed{12}"),
    ]
    grades = asyncio.run(grade_math(asked, answers, MathVerifier(ANSWER_FIELD)))
    assert [grade.score for grade in grades] == [1.0, 0.0, 0.0, 1.0]
    assert grades[2].status == "REFUSED"
