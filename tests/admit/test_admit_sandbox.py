"""A job's programs and this machine's sandbox: what is refused before anything starts, and in which words."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from areal.admit.answers import BadRows, check_suites, rows_of_file, rows_of_snapshot
from areal.admit.machine import sandbox_findings
from areal.cli.check import check_command
from areal.data.prepare import prepare
from areal.data.source import JsonlSource
from areal.errors import DataError
from areal.spec import RLJob, load_job
from areal.yaml_file.document import read_document
from areal_judge.judge.languages.discovery import Toolchain
from areal_judge.sandbox.host.tiers import REQUIRED, decide
from areal_judge.sandbox.values import Powers, Tier, TierProbe

JOB = Path(__file__).resolve().parents[2] / "examples" / "code_rl.yaml"
GOOD = {"prompt": "add 1:", "input_output": {"fn_name": "f", "inputs": [[1]], "outputs": [2]}}
EMPTY = {"prompt": "add 1:", "input_output": {"fn_name": "f", "inputs": [], "outputs": []}}


def job(*overrides: str) -> RLJob:
    return load_job(JOB, overrides)


def powers(tier: Tier, *, cgroup: bool = True) -> Powers:
    """A machine that holds exactly what a tier needs, and a cgroup where it is of use."""
    names = {name for low in Tier if low <= tier for one in REQUIRED[low] for name in one.probes} - {"own_kernel"}
    tried = {name for every in REQUIRED.values() for one in every for name in one.probes}
    grouped = ("cgroup_memory", "cgroup_processes")
    return decide([*(TierProbe(name, name in names) for name in tried), *(TierProbe(name, cgroup) for name in grouped)])


def test_a_machine_that_reaches_the_tier_is_fine():
    assert sandbox_findings(job(), powers=powers(Tier.T2)) == []
    assert sandbox_findings(job("reward.code.minTier=T3"), powers=powers(Tier.T3)) == []


def test_a_weaker_machine_is_refused_with_what_it_lacks_and_how_to_get_it():
    (finding,) = sandbox_findings(job("reward.code.minTier=T3"), powers=powers(Tier.T2))
    assert finding.field == "spec.reward.code.minTier"
    assert "T2" in finding.message
    assert "below T3" in finding.message
    assert "user namespaces" in finding.fix
    assert "override reward.code.minTier=T3" in finding.where


def test_boxes_need_a_machine_where_programs_fork_and_write():
    boxed = job("reward.verifier=exact", "reward.code=null", "rollout.boxes.maxConcurrent=8")
    assert sandbox_findings(boxed, powers=powers(Tier.T3)) == []
    (finding,) = sandbox_findings(boxed, powers=powers(Tier.T2))
    assert finding.field == "spec.rollout.boxes.maxConcurrent"
    assert "below T3" in finding.message


@pytest.mark.parametrize(
    ("override", "words"),
    [("reward.code.language=cpp", "starts another program"), ("reward.code.needs=[fork]", "several")],
)
def test_what_the_tier_that_is_there_cannot_run_is_refused_whatever_the_job_accepts(override, words):
    given = job(override, "reward.code.minTier=T0", "reward.code.allowUnsafe=true")
    (finding,) = sandbox_findings(given, powers=powers(Tier.T2))
    assert words in finding.message
    assert finding.fix


def test_a_language_needs_its_toolchain_here():
    given = job("reward.code.language=rust", "reward.code.minTier=T3")
    absent = [Toolchain("python"), Toolchain("rust", missing="there is no rustc: apt-get install rustc")]
    (finding,) = sandbox_findings(given, powers=powers(Tier.T3), toolchains=lambda: absent)
    assert "no rustc" in finding.message
    present = [replace(each, missing="") for each in absent]
    assert sandbox_findings(given, powers=powers(Tier.T3), toolchains=lambda: present) == []


@pytest.mark.parametrize(
    ("language", "refused"), [("java", True), ("javascript", True), ("cpp", False), ("python", False)]
)
def test_a_runtime_of_many_threads_needs_a_cgroup_that_bounds_its_memory(language, refused):
    given = job(f"reward.code.language={language}", "reward.code.minTier=T3")
    found = sandbox_findings(given, powers=powers(Tier.T3, cgroup=False), toolchains=lambda: [Toolchain(language)])
    assert [("cgroup" in finding.message) for finding in found] == ([True] if refused else [])
    assert sandbox_findings(given, powers=powers(Tier.T3), toolchains=lambda: [Toolchain(language)]) == []


def test_other_verifiers_ask_nothing_of_a_sandbox():
    assert sandbox_findings(job("reward={verifier: exact}"), powers=powers(Tier.T0)) == []
    check_suites(job("reward={verifier: exact}"), [("row 1", {}, 2)])


def test_a_row_without_usable_tests_is_named(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (GOOD, GOOD, EMPTY)))
    with pytest.raises(DataError, match=f"{re.escape(str(file))}:3: .*cases") as caught:
        check_suites(job(), rows_of_file(file))
    assert caught.value.fix
    prepare(JsonlSource(file), tmp_path / "snapshot")
    with pytest.raises(DataError, match=r"dataset\.train, row 3: "):
        check_suites(job(), rows_of_snapshot(tmp_path / "snapshot", "train"))
    assert list(rows_of_snapshot(tmp_path / "absent", "evaluation")) == []


def test_rows_whose_tests_judge_no_program_may_be_left_out_and_are_listed(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (GOOD, GOOD, EMPTY)))
    dropping = job("dataset.badRows=drop", "dataset.maxShare=0.4")
    whole = prepare(JsonlSource(file), tmp_path / "snapshot")
    bad = BadRows.of(dropping, "code", whole, print)
    assert bad is not None
    assert list(prepare(JsonlSource(file), tmp_path / "snapshot", left_out=bad)) == [GOOD, GOOD]
    assert [(row["row"].rpartition("/")[2], row["kind"]) for row in bad.listed] == [("train.jsonl:3", "tests")]
    bad.check_share(2)
    with pytest.raises(DataError, match=r"1 rows \(50\.0%\) can't be used"):
        bad.check_share(1)
    assert BadRows.of(job(), "code", whole, print) is None


def test_only_the_first_rows_are_read():
    read = []

    def rows():
        for number in range(10**6):
            read.append(number)
            yield f"row {number}", GOOD, 100

    check_suites(job(), rows())
    assert 1 < len(read) < 10_000


@pytest.mark.parametrize("row", [GOOD, EMPTY], ids=["good", "empty"])
def test_areal_check_looks_at_the_tests_and_at_the_sandbox(row, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("areal.admit.machine.api.probe", lambda **asked: powers(Tier.T2))
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    paths = [f"dataset.{split}.jsonl={tmp_path}/rows.jsonl" for split in ("train", "evaluation")]
    assert check_command(read_document(JOB), [*paths, "reward.code.minTier=T3"], as_json=True) == 64
    rules = [finding["rule"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert rules.count("code-here") == 1
    assert rules.count("code-suite") == (0 if row is GOOD else 2)
