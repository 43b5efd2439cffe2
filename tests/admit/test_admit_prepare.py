"""What prepare looks at beyond the stage's own: expected answers that could never be compared."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from areal.admit import prepare
from areal.admit.cluster import resolve_for_pods
from areal.errors import DataError
from areal.plan import ResolvedJob
from areal.spec import load_job
from support.tiny_job import make_tiny_job, write_job

pytest.importorskip("math_verify")
pytestmark = pytest.mark.component


def math_job(folder: Path, *answers: object) -> ResolvedJob:
    """The tiny job with verifier math and these expected answers, resolved for pods whose mounts are folders here."""
    make_tiny_job(folder)
    train = folder / "answers.jsonl"
    train.write_bytes(b"\n".join(orjson.dumps({"prompt": "1+1=", "answer": answer}) for answer in answers))
    blocks = {
        "model": {"path": str(folder / "model")},
        "recipe": None,
        "dataset": {"train": {"jsonl": str(train)}},
        "reward": {"verifier": "math"},
    }
    job = load_job(write_job(folder, **blocks))
    run_dir = folder / "run"
    run_dir.mkdir()
    resolved = resolve_for_pods(job, namespace="team", uid="u-1", recipe_source=None)
    return resolved.model_copy(update={"run_dir": run_dir, "recipe_path": None, "recipe_source": None})


def test_a_job_whose_answers_can_be_compared_is_prepared(tmp_path: Path) -> None:
    resolved = math_job(tmp_path, "1/2", 42, r"\sqrt{2}")
    assert prepare.run(resolved) == "dataset train: 3 rows"
    assert resolved.layout.resolved.exists()


def test_a_row_that_could_never_be_scored_is_named_and_the_run_is_not_prepared(tmp_path: Path) -> None:
    resolved = math_job(tmp_path, "1/2", r"a \to b")
    with pytest.raises(DataError, match=r"answers\.jsonl, row 2: the expected answer 'a .*to b'"):
        prepare.run(resolved)
    assert not resolved.layout.resolved.exists()


def test_without_the_library_it_is_said_that_nobody_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare.answers, "installed", lambda: False)
    resolved = math_job(tmp_path, r"a \to b")
    assert "expected answers weren't read" in prepare.run(resolved)
