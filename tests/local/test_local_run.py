"""`areal run` as a process, with dummies for roles: what it writes, prints and answers, and how it is stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from areal.cli.main import app, guarded
from areal.local import inspect
from areal.observe.live import read_live
from support import dummy_run
from support.processes import lives
from support.small_disk import small_disk

pytestmark = [pytest.mark.component, pytest.mark.timeout(600)]

Start = Callable[..., "subprocess.Popen[str]"]
PATIENCE_S = 240.0  # machines of tests are loaded


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    dummy_run.make(tmp_path)
    started: list[subprocess.Popen[str]] = []

    def begin(trainer: str, *flags: str) -> subprocess.Popen[str]:
        started.append(dummy_run.begin(tmp_path, trainer, *flags))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        if process.stdout.closed:
            process.wait(60)
        else:
            process.communicate(timeout=60)


def ended(process: subprocess.Popen[str], code: int) -> str:
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, output
    return output


def until(ready: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def summary(folder: Path) -> dict:
    return json.loads((folder / "runs" / "tiny" / "summary.json").read_text())


def test_a_run_that_ends_well_leaves_its_files_and_answers_zero(start, tmp_path, capsys):
    output = ended(start("well"), 0)
    run_dir = tmp_path / "runs" / "tiny"
    assert summary(tmp_path)["status"] == "Complete"
    assert summary(tmp_path)["steps"] == 3
    assert (run_dir / "report.html").stat().st_size > 1000
    capsys.readouterr()
    assert guarded(lambda: app(["report", str(run_dir), "--json"])) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(run_dir / "report.html")}
    live = read_live(run_dir / "live.json")
    assert live is not None
    assert live.ended
    assert (run_dir / "logs" / "trainer.log").exists()
    assert "Complete after 3 steps" in output
    assert "0 lost, 0 duplicated" in output


def test_a_trainer_that_died_is_restarted_and_counted(start, tmp_path):
    ended(start("once"), 0)
    assert summary(tmp_path)["restarts"] == {"worker-0": 0, "trainer": 1}


def test_a_run_that_fails_names_role_log_and_fix(start, tmp_path):
    output = ended(start("badly"), 65)
    assert "data error: trainer: row 7 has no prompt, at step 0 of 3" in output
    assert str(tmp_path / "runs" / "tiny" / "logs" / "trainer.log") in output
    assert "row 7 has no prompt" in output
    assert "fix: add the prompt" in output
    assert "Traceback" not in output
    assert summary(tmp_path)["status"] == "Failed"


def test_a_full_disk_ends_the_run_with_the_roles_words_and_room_lets_it_go_on(start, tmp_path):
    with small_disk(tmp_path / "disk", 64) as disk:
        output = ended(start("fills", "--run-dir", str(disk / "run")), 75)
        assert "infra error [disk-full]: trainer: can't write" in output
        assert "account.jsonl: No space left on device" in output
        assert f"fix: make room at {disk / 'run'} (" in output
        assert "please report" not in output
        (disk / "ballast").unlink()
        ended(start("well", "--run-dir", str(disk / "run"), "--resume"), 0)


def test_ctrl_c_drains_and_says_how_to_go_on(start, tmp_path):
    process = start("slow")
    run_dir = tmp_path / "runs" / "tiny"
    until(lambda: (run_dir / "metrics.jsonl").exists(), process)
    process.send_signal(signal.SIGINT)
    output = ended(process, 143)
    assert (run_dir / "saved").exists()
    assert "go on with: areal run job.yaml --resume" in output
    assert summary(tmp_path)["status"] == "Stopped"
    ended(start("well", "--resume"), 0)
    assert summary(tmp_path)["status"] == "Complete"


def test_a_run_whose_reader_is_gone_goes_to_its_end(start, tmp_path):
    process = start("well")
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 0
    assert summary(tmp_path)["status"] == "Complete"


def test_a_run_whose_reader_went_away_still_saves_at_ctrl_c(start, tmp_path):
    process = start("slow")
    run_dir = tmp_path / "runs" / "tiny"
    until(lambda: (run_dir / "metrics.jsonl").exists(), process)
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 143
    assert (run_dir / "saved").exists()
    assert summary(tmp_path)["status"] == "Stopped"


def test_a_second_run_in_the_same_directory_is_refused(start, tmp_path):
    first = start("slow")
    until(lambda: (tmp_path / "runs" / "tiny" / "metrics.jsonl").exists(), first)
    assert "in use by another `areal run`" in ended(start("slow", "--fresh"), 64)
    assert first.poll() is None


def test_killing_the_run_leaves_no_process_and_it_can_be_resumed(start, tmp_path):
    process = start("slow")
    until(lambda: (tmp_path / "runs" / "tiny" / "metrics.jsonl").exists(), process)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) == 4
    process.kill()
    process.wait(60)
    deadline = time.monotonic() + PATIENCE_S
    while any(lives(one) for one in family):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ended(start("well", "--resume"), 0)


def test_status_shows_what_every_role_says(start, tmp_path):
    process = start("slow", "rollout.gateway.replicas=1")
    run_dir = tmp_path / "runs" / "tiny"
    until(lambda: (run_dir / "metrics.jsonl").exists(), process)
    until(lambda: (live := read_live(run_dir / "live.json")) is not None and live.step == 1, process)
    picture = inspect.look(run_dir)
    live = picture.live
    assert [(role.name, role.phase) for role in live.roles] == [("worker-0", "ready"), ("trainer", "ready")]
    (wait,) = live.roles[0].waits
    assert (wait.name, wait.waits_for, wait.deadline_s) == ("leases", "a lease from the controller", 30.0)
    loaded = json.loads(inspect.as_json(picture))
    assert loaded["roles"][0]["waits"][0]["waitsFor"] == "a lease from the controller"
    ports = json.loads((run_dir / "resolved.json").read_text())["ports"]
    assert loaded["baseUrls"] == [f"http://127.0.0.1:{ports['gateway-0']['http']}/v1"]
