"""`areal check` reads expected answers of a file of rows, where math compares them."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest
from areal.cli.check import check_command
from areal.yaml_file.document import read_document
from support.tiny_job import make_tiny_job, write_job

pytest.importorskip("math_verify")
pytestmark = pytest.mark.component


@pytest.mark.parametrize(("answer", "refused"), [("1/2", False), (r"a \to b", True)])
def test_an_answer_that_can_never_be_compared_refuses_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: str, refused: bool
) -> None:
    make_tiny_job(tmp_path)
    train = tmp_path / "answers.jsonl"
    rows = [{"prompt": "1+1=", "answer": one} for one in ("2", answer)] * 40
    train.write_bytes(b"\n".join(orjson.dumps(row) for row in rows))
    job = write_job(
        tmp_path,
        model={"path": str(tmp_path / "model")},
        dataset={"train": {"jsonl": str(train)}},
        reward={"verifier": "math"},
    )
    code = check_command(read_document(job), [], as_json=True)
    findings = {one["rule"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert ("math-answer" in findings) is refused
    if refused:
        assert code == 64
        assert f"{train}:2: the expected answer" in findings["math-answer"]["message"]
        assert findings["math-answer"]["field"] == "spec.dataset.train"
