"""What is left of a run: its summary."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from areal.errors import DataError
from areal.ledger.audit import AuditReport
from areal.local.run import summary_table
from areal.observe.live import Diagnosis
from areal.record import summary
from areal.record.episode_ends import GENERATED, REPREFILLED, TokenFate
from areal.record.run_rows import Records
from areal.rollout.controller.token_book import TokenBook
from rich.console import Console

AUDIT = AuditReport(trained=40, steps=10, tombstoned={"filtered": 3}, finished=True)
ENDING = summary.RunEnd("Complete", 20.0, {"trainer": 1, "worker-0": 0}, 200.0)


@pytest.fixture
def run_dir(tmp_path) -> Path:
    lines = [
        {
            "step": step, "reward_mean": 0.5 + step / 100, "staleness_mean": 1.0, "staleness_max": step % 3,
            "tokens": 100, "wall_s": 1.0, "seconds": {"wait": 0.5, "train": 0.4, "publish": 0.1}, "at": 100.0 + step,
            "loss": 0.25 - step / 50, "sequences": 8,
        }
        for step in range(10)
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    scores = [{"version": version, "mean": mean} for version, mean in ((0, 0.6), (5, 0.95), (10, 0.92))]
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(score) + "\n" for score in scores))
    return tmp_path


def records(run_dir: Path) -> Records:
    return Records(run_dir / "metrics.jsonl", run_dir / "evaluations.jsonl").refresh()


def test_a_summary_has_exactly_the_promised_fields(run_dir):
    assert summary.make(ENDING, records(run_dir), AUDIT) == {
        "status": "Complete",
        "steps": 10,
        "wallSeconds": 20.0,
        "heldOut": {"first": 0.6, "best": 0.95, "last": 0.92},
        "groups": {"trained": 40, "tombstoned": {"filtered": 3}, "lost": 0, "duplicated": 0},
        "updates": None,
        "sameRewardShare": None,
        "restarts": {"trainer": 1, "worker-0": 0},
        "staleness": {"mean": 1.0, "max": 2},
        "tokensPerSecond": {"generation": 200.0, "training": 200.0},
    }


def test_a_summary_tells_the_share_of_infrastructure_faults(run_dir):
    made = summary.make(ENDING, records(run_dir), AUDIT, ends={"complete": 970, "infra": 30})
    assert made["episodes"] == {"ends": {"complete": 970, "infra": 30}, "infraShare": 0.03}
    console = Console(file=io.StringIO(), width=100)
    console.print(summary_table(made, run_dir))
    assert "3.00% of 1,000 episodes" in console.file.getvalue()
    assert "wasted" not in console.file.getvalue()


def test_a_summary_tells_the_share_of_wasted_tokens_and_where_they_went(run_dir):
    book = TokenBook()
    book.told("server/s", "1", {GENERATED: 1000})
    book.told("worker/w", "1", {TokenFate.ABORTED: 30, TokenFate.STALE: 5, TokenFate.EVALUATED: 400, REPREFILLED: 70})
    counts = {"complete": 8, **book.kept()}
    made = summary.make(ENDING, records(run_dir), AUDIT, ends=counts)
    assert made["episodes"]["ends"] == {"complete": 8}
    assert made["tokens"]["wastedShare"] == 0.035
    assert made["tokens"]["fates"] == {
        "generated": 1000, "served": 0, "migrated": 0, "evaluated": 400, "stale": 5, "aborted": 30, "lost": 0,
        "in_flight": 565, "reprefilled": 70,
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=100)
    console.print(summary_table(made, run_dir))
    assert "3.50%: lost 0, stale 5, aborted 30" in console.file.getvalue()


def test_a_run_that_changed_nothing_is_not_complete(tmp_path):
    lines = [
        {"step": step, "tokens": 100, "trained_tokens": 0, "wall_s": 1.0, "updates": 0, "groups": 4, "reward_mean": 0.0,
         "zero_variance_groups": 4} for step in range(3)
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = summary.make(ENDING, records(tmp_path), AUDIT)
    assert (made["status"], made["updates"], made["sameRewardShare"]) == ("NothingLearned", 0, 1.0)
    assert made["tokensPerSecond"]["training"] == 0
    console = Console(file=io.StringIO(), width=100)
    console.print(summary_table(made, tmp_path))
    assert "100% of groups earned the same, 0 updates" in console.file.getvalue()


def test_a_resumed_run_adds_to_what_it_finds(run_dir):
    first = summary.make(ENDING, records(run_dir), AUDIT)
    second = summary.make(ENDING, records(run_dir), AUDIT, first)
    assert (second["wallSeconds"], second["restarts"]) == (40.0, {"trainer": 2, "worker-0": 0})


def test_a_run_that_never_trained_has_a_summary(tmp_path):
    end = Diagnosis("bug", "no", role="trainer")
    made = summary.make(summary.RunEnd("Failed", 0.0, {}, 0, end), records(tmp_path), AuditReport())
    assert (made["steps"], made["heldOut"]["first"], summary.cause_of(made)) == (0, None, end)
    console = Console(file=io.StringIO(), width=100)
    console.print(summary_table(made, tmp_path))
    assert "Failed after 0 steps" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_summary_is_written_whole(run_dir):
    path = run_dir / "summary.json"
    made = summary.make(ENDING, records(run_dir), AUDIT)
    summary.write(path, made)
    assert summary.read(path) == made
    path.unlink()
    assert summary.read(path) is None


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (b"", "EOF"),
        (b"{", "EOF"),
        (b"\xff\xfe{}", "expected value"),
        (b"[1, 2]", "an object"),
        (b"[" * 10**5, "recursion limit"),
        (b'{"status": "Complete"}', "steps: Field required"),
        (b'{"restarts": []}', "status: Field required"),
    ],
)
def test_a_damaged_summary_is_told_in_a_sentence(tmp_path, damage, told):
    (tmp_path / "summary.json").write_bytes(damage)
    with pytest.raises(DataError, match=rf"summary.json is damaged: .*{told}") as refused:
        summary.read(tmp_path / "summary.json")
    assert refused.value.fix
    assert len(refused.value.message) < 400
