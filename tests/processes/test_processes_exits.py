"""What exit codes mean."""

from __future__ import annotations

import pytest
from areal.errors import ExitCode
from areal.processes.exits import ExitVerdict, classify, exit_code_of

TORCHRUN_REPORT = """
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_09:00:00
  rank      : 0 (local_rank: 0)
  exitcode  : {code} (pid: 4711)
  error_file: <N/A>
""".splitlines()


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (0, ExitVerdict.COMPLETE),
        (64, ExitVerdict.REFUSED),
        (65, ExitVerdict.REFUSED),
        (126, ExitVerdict.REFUSED),
        (127, ExitVerdict.REFUSED),
        (70, ExitVerdict.RESTART),
        (75, ExitVerdict.RESTART),
        (143, ExitVerdict.RESTART),
        (1, ExitVerdict.RESTART),
        (-9, ExitVerdict.RESTART),
        (-11, ExitVerdict.RESTART),
    ],
)
def test_each_code_has_one_verdict(code, verdict):
    assert classify(code).verdict is verdict


def test_a_signal_is_named():
    assert classify(-9).reason == "killed by SIGKILL"
    assert classify(-250).reason == "killed by signal 250"


@pytest.mark.parametrize(
    ("rank", "verdict"), [(64, ExitVerdict.REFUSED), (75, ExitVerdict.RESTART), (-9, ExitVerdict.RESTART)]
)
def test_a_rank_speaks_through_torchruns_report(rank, verdict):
    tail = [line.format(code=rank) for line in TORCHRUN_REPORT]
    found = classify(1, tail)
    assert (found.code, found.verdict) == (rank, verdict)


def test_a_report_is_read_only_when_torchrun_hides_the_code():
    assert classify(75, [line.format(code=64) for line in TORCHRUN_REPORT]).code == 75


@pytest.mark.parametrize(("code", "run"), [(64, 64), (65, 65), (70, 70), (75, 75), (-9, 75), (1, 70), (127, 64)])
def test_a_failed_run_says_whose_fault_it_was(code, run):
    assert exit_code_of(code) == ExitCode(run)
