"""`areal run` as a process, with dummies for roles: what it writes, prints and answers, and how it is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from areal.local import inspect
from areal.observe.live import read_live
from support.processes import lives
from support.small_disk import small_disk
from support.tiny_job import make_tiny_job

pytestmark = pytest.mark.component

# The command line with another role table: one real gRPC role, and a trainer that writes what a trainer writes.
MAIN = """
import sys
from areal.cli.main import app, guarded
from areal.local import run
from areal.plan import RoleRow

HERE, TRAINER = sys.argv.pop(1), sys.argv.pop(1)

def table(resolved):
    def row(name, code, ready, depends_on=(), restart="in_place"):
        command = [sys.executable, HERE, code, str(resolved.layout.resolved), str(resolved.ports[name].get("grpc", 0))]
        role, ports = name.partition("-")[0], resolved.ports[name]
        return RoleRow(name, role, 0, command, {}, ports, list(depends_on), ready, 5.0, 30.0, restart, 2)
    return [row("worker-0", "worker", "grpc"), row("trainer", TRAINER, "none", ["worker-0"], "epoch")]

run.role_table = table
sys.exit(guarded(app))
"""

ROLE = """
import asyncio, contextlib, json, os, signal, sys, time
from areal.plan import ResolvedJob
what, job, port = sys.argv[1], ResolvedJob.load(__import__("pathlib").Path(sys.argv[2])), int(sys.argv[3])
layout = job.layout

def steps(first, last):
    with layout.metrics.open("a") as file:
        for step in range(first, last):
            line = {"step": step, "reward_mean": 0.5, "tokens": 8, "wall_s": 0.1, "at": time.time()}
            file.write(json.dumps(line) + "\\n")

async def worker():
    from areal.net.server import GrpcServer
    from areal.observe.progress import ProgressCounter
    from areal.observe.waits import WaitRegistry
    waits, stop = WaitRegistry("worker-0"), asyncio.Event()
    server = GrpcServer("worker-0", layout.token.read_text(), waits=waits, progress=ProgressCounter())
    await server.start(port)
    await server.set_ready(True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with waits.waiting("leases", "a lease from the controller", deadline_s=30):
        await stop.wait()
    await server.stop(0)

def saved(*_):
    (layout.root / "saved").touch()
    sys.exit(143)

signal.signal(signal.SIGTERM, saved)
if what == "worker":
    asyncio.run(worker())
elif what == "well":
    steps(0, job.spec.algorithm.max_steps)
elif what == "badly":
    print("data error: row 7 has no prompt\\n  fix: add the prompt", file=sys.stderr)
    sys.exit(65)
elif what == "fills":
    steps(0, 1)
    from areal.errors import InfraError
    from areal.ledger.lines import LineWriter
    try:
        account = LineWriter(layout.root / "account.jsonl")
        with contextlib.suppress(OSError), (layout.root.parent / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        while True:
            account.append([{"text": "x" * 4096}])
    except InfraError as error:
        print(f"infra error: {error}", file=sys.stderr)
        sys.exit(75)
elif what == "once":
    if os.environ["AREAL_EPOCH"] == "0":
        os.kill(os.getpid(), 9)
    steps(0, 3)
else:
    steps(0, 1)
    time.sleep(600)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    make_tiny_job(tmp_path)
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "role.py").write_text(ROLE)
    started: list[subprocess.Popen[str]] = []

    def begin(trainer: str, *flags: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            str(tmp_path / "main.py"),
            str(tmp_path / "role.py"),
            trainer,
            "run",
            "job.yaml",
            *flags,
        ]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        if process.stdout.closed:
            process.wait(60)
        else:
            process.communicate(timeout=60)


def ended(process: subprocess.Popen[str], code: int) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    return output


def until(ready: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def summary(folder: Path) -> dict:
    return json.loads((folder / "runs" / "tiny" / "summary.json").read_text())


def test_a_run_that_ends_well_leaves_its_files_and_answers_zero(start, tmp_path):
    output = ended(start("well"), 0)
    run_dir = tmp_path / "runs" / "tiny"
    assert summary(tmp_path)["status"] == "Complete"
    assert summary(tmp_path)["steps"] == 3
    assert (run_dir / "report.html").stat().st_size > 1000
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
    assert "data error: trainer failed: exit 65: the dataset, model or recipe is wrong" in output
    assert str(tmp_path / "runs" / "tiny" / "logs" / "trainer.log") in output
    assert "row 7 has no prompt" in output
    assert "fix: add the prompt" in output
    assert "Traceback" not in output
    assert summary(tmp_path)["status"] == "Failed"


def test_a_full_disk_ends_the_run_with_the_roles_words_and_room_lets_it_go_on(start, tmp_path):
    with small_disk(tmp_path / "disk", 64) as disk:
        output = ended(start("fills", "--run-dir", str(disk / "run")), 75)
        assert "infra error: trainer failed: exit 75" in output
        assert "can't write" in output
        assert "account.jsonl: No space left on device" in output
        assert "fix: free space on the run's volume" in output
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
    assert process.wait(60) == 0
    assert summary(tmp_path)["status"] == "Complete"


def test_a_run_whose_reader_went_away_still_saves_at_ctrl_c(start, tmp_path):
    process = start("slow")
    run_dir = tmp_path / "runs" / "tiny"
    until(lambda: (run_dir / "metrics.jsonl").exists(), process)
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 143
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
    deadline = time.monotonic() + 60
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
