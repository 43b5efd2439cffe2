"""`areal eval --suite …` with the quickstart's model: a server, a run that goes on, programs in the sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from areal.engine.served import served
from areal.errors import ConfigError, InfraError
from areal_judge.evaluate.suite_run import SuiteOptions, suite_command

pytestmark = pytest.mark.component


@pytest.fixture(scope="module")
def address(digits: Path) -> Iterator[str]:
    with served(str(digits)) as found:
        yield found


@pytest.fixture(scope="module")
def rows(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's held-out rows, written as GSM8K writes its own."""
    file = tmp_path_factory.mktemp("rows") / "test.jsonl"
    held_out = (json.loads(line) for line in Path("data/digits/heldout.jsonl").read_text().splitlines()[:24])
    written = [{"question": row["prompt"], "answer": f"Sorted.\n#### {row['answer']}"} for row in held_out]
    file.write_text("".join(json.dumps(row) + "\n" for row in written))
    return file


def report(capsys: pytest.CaptureFixture[str], **asked: Any) -> Any:
    options = {"suite": "gsm8k", "instruction": "", "max_tokens": 8, "as_json": True}
    assert suite_command(SuiteOptions(**{**options, **asked})) == 0
    return json.loads(capsys.readouterr().out)


def test_samples_of_an_address_are_counted_as_they_were_graded(address, rows, tmp_path, capsys):
    out = tmp_path / "answers.jsonl"
    asked = {"model": address, "data": rows, "limit": 12, "samples": 4, "temperature": 1.0, "ks": (1, 2, 4), "out": out}
    found = report(capsys, **asked)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(answers) == 48
    by_question = [[one["score"] for one in answers if one["id"] == str(number)] for number in range(12)]
    assert found["avg@4"] == pytest.approx(sum(map(sum, by_question)) / 48, abs=1e-6)
    assert found["pass@4"] == pytest.approx(sum(max(scores) for scores in by_question) / 12, abs=1e-6)
    assert found["pass@1"] <= found["pass@2"] <= found["pass@4"]
    assert (found["refused"], found["ungraded"]) == (0, 0)
    assert report(capsys, **asked)["avg@4"] == found["avg@4"]  # the seeds are the same


def test_a_run_that_goes_on_is_measured_by_its_newest_whole_version(digits, rows, tmp_path, capsys, address):
    from areal.values.policy import PolicyId
    from areal.weights.publish import publish
    from safetensors.numpy import load_file

    run = tmp_path / "run"
    tensors = [(name, "F32", value.shape, value) for name, value in load_file(digits / "model.safetensors").items()]
    files = {path.name: path for path in digits.iterdir() if path.suffix == ".json"}
    publish(run / "weights", PolicyId(7, 2), tensors, None, files)
    (run / "resolved.json").write_text("{}")
    of_run = report(capsys, model=str(run), data=rows)
    assert of_run["policy"] == "7.f2"
    assert of_run["avg@1"] == report(capsys, model=address, data=rows)["avg@1"] > 0
    assert sorted(path.name for path in run.iterdir()) == ["resolved.json", "weights"]


def test_programs_are_judged_by_their_tests_and_a_question_beyond_the_context_is_wrong(address, tmp_path, capsys):
    file = tmp_path / "lcb.jsonl"
    tests = json.dumps([{"input": "", "output": "3\n", "testtype": "stdin"}])
    rows = [
        {"question_id": str(number), "question_content": "31=" * times, "starter_code": "", "public_test_cases": tests}
        for number, times in enumerate((1, 1000))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = report(capsys, suite="livecodebench", model=address, data=file)
    assert (found["avg@1"], found["refused"], found["ungraded"]) == (0.0, 1, 0)
    assert set(found["statuses"]) - {"REFUSED"} <= {"WRONG_ANSWER", "RUNTIME_ERROR", "NO_PROGRAM"}


def test_what_cannot_be_measured_is_said_with_what_to_type(rows, tmp_path):
    for asked, said in (
        ({"suite": "mmlu"}, "there is no suite"),
        ({"samples": 2, "ks": (4,)}, "pass@4 needs as many samples"),
        ({"model": "hf://nobody/nothing"}, "this machine doesn't have"),
    ):
        with pytest.raises(ConfigError, match=said):
            suite_command(SuiteOptions(**{"suite": "gsm8k", "model": "x", "data": rows, **asked}))
    with pytest.raises(InfraError, match="does not answer"):
        suite_command(SuiteOptions("gsm8k", "http://127.0.0.1:9", data=rows))
