"""Rows of a job before it runs: how they are read, rows of another form, prompts that are too long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from areal.admit.resolve import resolve
from areal.admit.rows import prepare_datasets, with_snapshots
from areal.admit.verdict import admit, examined
from areal.data import Snapshot
from areal.errors import DataError
from areal.spec import check, load_job
from areal.spec.job import RLJob
from areal.spec.rules import Finding
from areal.spec.serving import Reward
from support.tiny_job import make_tiny_job, write_job

TEXT = {"question": "1+1=", "answer": "2"}
CHAT = {"messages": [{"role": "user", "content": "1+1="}], "answer": "2"}
LONG = {"question": "1+" * 60, "answer": "60"}


def job_of(folder: Path, rows: list[dict[str, Any]], **dataset: Any) -> RLJob:
    if not (folder / "model").exists():
        make_tiny_job(folder)
    train = folder / "rows.jsonl"
    train.write_bytes(b"\n".join(orjson.dumps(row) for row in rows))
    dataset.setdefault("train", {"jsonl": str(train)})
    blocks = {"model": {"path": str(folder / "model")}, "recipe": None, "reward": {"verifier": "exact"}}
    return load_job(write_job(folder, **blocks, dataset=dataset))


def prepared(job: RLJob, folder: Path) -> tuple[Snapshot, list[str]]:
    said: list[str] = []
    resolved = resolve(job, run_dir=folder / "run", base_dir=folder)
    prepare_datasets(resolved, None, said.append)
    with_snapshots(resolved)
    return Snapshot(resolved.layout.dataset / "train"), said


def test_check_says_how_each_source_is_read(tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_bytes(
        orjson.dumps({"conversations": [{"from": "human", "value": "1"}], "answer": 1})
    )
    sources = [{"jsonl": str(tmp_path / "rows.jsonl")}, {"jsonl": str(tmp_path / "chats.jsonl"), "weight": 2}]
    verdict = admit(job_of(tmp_path, [TEXT], train={"sources": sources}), tmp_path)
    assert not verdict.refused
    places = [f"dataset.train.sources.{number}" for number in (0, 1)]
    assert verdict.read_as == ((places[0], "read as a text prompt"), (places[1], "read as ShareGPT"))


def test_check_names_texts_that_a_question_is_about_and_the_prompt_lacks(tmp_path: Path) -> None:
    """ASDiv has its story in `body`, SQuAD its paragraph in `context`: the question alone can't be answered."""
    asked = {"question": "How many?", "body": "Seven apples.", "context": "", "answer": "7"}
    verdict = admit(
        job_of(tmp_path, [TEXT, {**asked, "question": "Two apples. How many?", "body": "Two apples."}, asked]), tmp_path
    )
    (_, words) = verdict.read_as[1]
    assert words.startswith("texts of body aren't in the prompt")
    whole = admit(job_of(tmp_path, [TEXT, {**asked, "question": "Seven apples. How many?"}]), tmp_path)
    assert whole.read_as == (("dataset.train", "read as a text prompt"),)


def test_a_row_of_another_form_is_refused_with_both_names_unless_each_may_have_its_own(tmp_path: Path) -> None:
    verdict = admit(job_of(tmp_path, [TEXT, CHAT]), tmp_path)
    words = r"rows\.jsonl:2: the row is read as OpenAI's messages, the first row of its source as a text prompt"
    with pytest.raises(DataError, match=words):
        verdict.refuse("job.yaml")
    assert not admit(job_of(tmp_path, [TEXT, CHAT], form="auto"), tmp_path).refused


def test_what_check_did_not_read_is_refused_when_the_run_is_prepared(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl, row 2: the row is read as"):
        prepared(job_of(tmp_path, [TEXT, CHAT]), tmp_path)


def test_long_prompts_are_dropped_where_the_job_says_so_and_counted(tmp_path: Path) -> None:
    rows = [TEXT, LONG, TEXT, LONG]
    refused = admit(job_of(tmp_path, rows), tmp_path)
    assert [finding.rule for finding in refused.findings if finding.severity == "error"] == ["prompt-too-long"]
    job = job_of(tmp_path, rows, longPrompts="drop")
    verdict = admit(job, tmp_path)
    assert not verdict.refused
    assert "2 of 4 rows read have prompts that leave no room for an answer: dropped" in dict(verdict.read_as).values()
    snapshot, said = prepared(job, tmp_path)
    room = job.spec.rollout.max_sample_tokens - job.spec.rollout.sampling.max_new_tokens
    assert list(snapshot) == [TEXT, TEXT]
    assert said == [f"dataset train: 2 rows, 2 left out: prompts of more than {room} tokens"]


def test_a_dataset_of_nothing_but_long_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"all 2 rows of .* are left out"):
        prepared(job_of(tmp_path, [LONG, LONG], longPrompts="drop"), tmp_path)


def test_a_nested_column_may_be_the_answer(tmp_path: Path) -> None:
    job = job_of(tmp_path, [{"prompt": "1", "reward_model": {"ground_truth": "1"}}])
    job = RLJob.model_validate(
        {
            **job.as_written,
            "spec": {
                **job.as_written["spec"],
                "reward": {"verifier": "exact", "answerField": "reward_model.ground_truth"},
            },
        }
    )
    assert not admit(job, tmp_path).refused
    assert "answer-column" not in {finding.rule for finding in check(job)}


GOLDS = ["1/2", "3", "No. It is not closed under addition.", r"1+x+\cdots", r"\sqrt{2}", "", "4"]


def math_job(folder: Path, **dataset: Any) -> RLJob:
    rows = [{"question": f"{number}=", "answer": gold} for number, gold in enumerate(GOLDS)]
    blocks = job_of(folder, rows, **dataset)
    return blocks.model_copy(update={"spec": blocks.spec.model_copy(update={"reward": Reward(verifier="math")})})


@pytest.mark.component
def test_rows_whose_answers_can_never_be_used_are_dropped_and_listed_up_to_a_share(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    snapshot, said = prepared(math_job(tmp_path, badRows="drop", maxShare=0.5), tmp_path)
    assert [row["answer"] for row in snapshot] == ["1/2", "3", r"\sqrt{2}", "4"]
    listed = [orjson.loads(line) for line in (tmp_path / "run/dataset/badrows.jsonl").read_bytes().splitlines()]
    assert [(row["split"], row["row"].rpartition("/")[2], row["kind"]) for row in listed] == [
        ("train", "rows.jsonl:3", "prose"), ("train", "rows.jsonl:4", "series"), ("train", "rows.jsonl:6", "empty"),
    ]  # fmt: skip
    assert [row["gold"] for row in listed] == [GOLDS[2], GOLDS[3], GOLDS[5]]
    assert "3 rows were left out" in said[-1]
    again, _ = prepared(math_job(tmp_path, badRows="drop", maxShare=0.5), tmp_path)
    assert again.digest == snapshot.digest
    with pytest.raises(
        DataError, match=r"3 rows \(42\.9%\) can't be used .* \(1 prose, 1 series, 1 empty; the first is"
    ):
        prepared(math_job(tmp_path, badRows="drop", maxShare=0.4), tmp_path)


@pytest.mark.component
def of_rows(job: RLJob, place: Path) -> list[Finding]:
    """What the look at expected answers adds to the verdict."""
    before = admit(job, place)
    return [finding for finding in examined(job, before).findings if finding not in before.findings]


def test_check_tells_how_many_rows_would_be_left_out(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    job = math_job(tmp_path, badRows="drop", maxShare=0.5)
    told = of_rows(job, tmp_path)
    assert [finding.severity for finding in told] == ["warning"]
    assert "3 of the first 7 rows can't be used (1 empty, 1 prose, 1 series)" in told[0].message
    strict = math_job(tmp_path, badRows="drop", maxShare=0.1)
    assert [finding.severity for finding in of_rows(strict, tmp_path)] == ["error"]
