"""Rows as steps of a scripted Slurm: the batch script, the step of a row, its signals, its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import orjson
import psutil
import pytest
from areal.files import write_atomically
from areal.hosts import slurm
from areal.hosts.placement import Host, HostPlan, RowPlace
from areal.hosts.step import error_file
from areal.hosts.task import fitted
from support.scripted_slurm import ScriptedSlurm


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    made = ScriptedSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return made


@pytest.fixture
def daemon() -> Iterator[socket.socket]:
    """What accepts connections as a slurmd does."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def test_the_script_warns_only_the_batch_shell_and_keeps_its_log():
    text = slurm.script("digits", ["areal", "run", "a job.yaml"], Path("/r/out.log"), {"nodes": "2", "time": "4:00"})
    lines = text.splitlines()
    wanted = ("nodes=2", "time=4:00", "open-mode=append", "requeue", "no-kill", f"signal=B:TERM@{slurm.WARNING_S}")
    assert {f"#SBATCH --{option}" for option in (*wanted, "job-name=areal-digits", "output=/r/out.log")} <= set(lines)
    assert lines[0] == "#!/bin/bash"
    assert lines[-1] == "exec areal run 'a job.yaml'", "a shell that waits would not hand the warning on"


def test_an_option_of_ours_can_be_left_out_and_changed():
    text = slurm.script("digits", ["true"], Path("/r/out"), {"exclusive": "no", "signal": "B:TERM@90"})
    assert "--exclusive" not in text
    assert text.count("--signal") == 1
    assert "#SBATCH --signal=B:TERM@90\n" in text


def test_hosts_of_an_allocation(scripted, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[0-1]")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "16(x2),8")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    (scripted.root / "n0").write_text("NodeName=n0 Arch=x86_64 NodeAddr=127.0.0.1 Port=26918 OS=Linux 6 #1 SMP")
    (scripted.root / "n1").write_text("NodeName=n1 NodeAddr=127.0.0.2 NodeHostName=vm")
    assert slurm.allocation() == [Host("n0", "127.0.0.1", 26918, 8, 4), Host("n1", "127.0.0.2", 6818, 8, 4)]


def test_steps_are_found_by_their_whole_name(scripted):
    (scripted.root / "steps").write_text("7.batch batch\n7.5 row-worker-1\n7.6 row-worker-11\n7.9 row-worker-1\n")
    assert slurm.SlurmStep("7", "worker-1").signal("TERM") == 2
    assert [line for line in scripted.asked if line.startswith("scancel")] == [
        "scancel --signal=TERM 7.5", "scancel --signal=TERM 7.9",
    ]  # fmt: skip


def test_a_step_asks_for_all_gpus_of_its_host_and_sees_its_own():
    hosts = [Host("n0", "10.0.0.1", 1, 16, 8)]
    assert "--gres=gpu:8" in slurm.SlurmStep("7", "generation-0").srun(hosts, gpus=True, command=["true"])
    assert "--gres=none" in slurm.SlurmStep("7", "worker-0").srun(hosts, gpus=False, command=["true"])
    plan = HostPlan({"n0": hosts[0]}, {"generation-0": RowPlace(("n0",), (2, 3))})
    ours = {"SLURMD_NODENAME": "n0", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "SLURM_PROCID": "0"}
    _, env = fitted(plan, "generation-0", ["true"], ours)
    assert env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert env["AREAL_ADDRESS"] == "10.0.0.1"


class Row:
    """`areal.hosts.step` of one row, as the supervisor starts it."""

    def __init__(self, folder: Path, port: int, command: list[str], hosts: tuple[str, ...] = ("n0",)) -> None:
        self.plan = folder / "hosts" / "plan.json"
        self.hosts, self.folder = hosts, folder
        self.write(port)
        self.error = folder / "error"
        self.error.touch()
        self.out = folder / "out"
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "areal.hosts.step", str(self.plan), "worker-0", *command],
                env={**os.environ, "AREAL_ERROR_FILE": str(self.error)}, stdout=out, stderr=out,
            )  # fmt: skip

    def write(self, port: int) -> None:
        hosts = {name: Host(name, "127.0.0.1", port) for name in self.hosts}
        write_atomically(self.plan, orjson.dumps(HostPlan(hosts, {"worker-0": RowPlace(self.hosts)})))

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not what():
            assert self.process.poll() is None, self.out.read_text()
            assert time.monotonic() < deadline, self.out.read_text()
            time.sleep(0.05)

    def says(self, text: str) -> bool:
        return text in self.out.read_text()


@pytest.fixture
def start(tmp_path: Path, scripted: ScriptedSlurm, daemon: socket.socket) -> Iterator[Callable[..., Row]]:
    rows: list[Row] = []

    def made(program: str, port: int | None = None, **more: tuple[str, ...]) -> Row:
        command = [sys.executable, "-c", program, "--node-rank", "0"]
        rows.append(Row(tmp_path, port or daemon.getsockname()[1], command, **more))
        return rows[-1]

    yield made
    for row in rows:
        with suppress(psutil.NoSuchProcess):  # a step that is killed leaves what it started
            for one in psutil.Process(row.process.pid).children(recursive=True):
                one.kill()
        row.process.kill()
        row.process.wait()


PATIENT = """
import os, signal, sys, time
def stop(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print("up", *sys.argv[1:], os.environ["AREAL_ADDRESS"], flush=True)
while True: time.sleep(0.05)  # a signal just before one long sleep would be handled after it
"""


def test_a_row_s_sigterm_reaches_its_program_and_not_srun(start, scripted):
    row = start(PATIENT)
    row.wait_for(lambda: row.says("up"))
    row.process.send_signal(signal.SIGTERM)
    assert row.process.wait(60) == 143
    assert row.says("saved")
    assert "scancel --signal=TERM 7.4" in scripted.asked
    assert not (scripted.root / "srun-terminated").exists()


def test_a_member_of_a_gang_is_told_its_rank_and_address(start):
    row = start(PATIENT, hosts=("n0", "n1"))
    row.wait_for(lambda: row.says("up --node-rank 1 127.0.0.1"))
    assert "n0,n1" in (row.folder / "slurm" / "asked").read_text()


@pytest.mark.parametrize(("end", "code"), [("sys.exit(65)", 65), ("os.kill(os.getpid(), 9)", -9), ("sys.exit(0)", 0)])
def test_a_row_ends_as_its_program_did_and_leaves_its_error(start, end, code):
    row = start(f"import os, sys; open(os.environ['AREAL_ERROR_FILE'], 'w').write('words'); {end}")
    assert row.process.wait(60) == code, row.out.read_text()
    assert row.error.read_text() == "words"


def test_what_an_earlier_start_left_is_ended_first(start, scripted):
    (scripted.root / "steps").write_text("7.2 row-worker-0\n7.3 row-worker-1\n")
    row = start("print('done')")
    assert row.process.wait(60) == 0, row.out.read_text()
    commands = [line.split()[0] for line in scripted.asked]
    assert commands.index("scancel") < commands.index("srun")
    assert "scancel --signal=KILL 7.2" in scripted.asked
    assert (scripted.root / "steps").read_text() == "7.3 row-worker-1\n"


def test_a_row_whose_host_is_lost_starts_where_the_plan_has_put_it(start, scripted, daemon):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    row = start("print('done')", port)
    row.wait_for(lambda: row.says("waits for its host"))
    assert not any(line.startswith("srun") for line in scripted.asked)
    row.write(daemon.getsockname()[1])
    assert row.process.wait(60) == 0, row.out.read_text()
    assert error_file(row.plan, "worker-0").parent == row.plan.parent


def test_a_row_that_waits_for_its_host_stops_at_once(start):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    row = start("print('done')", port)
    row.wait_for(lambda: row.says("waits for its host"))
    row.process.send_signal(signal.SIGTERM)
    assert row.process.wait(60) == 143


def test_a_program_dies_with_its_step(start, scripted):
    row = start(PATIENT)
    row.wait_for(lambda: row.says("up"))
    task = psutil.Process(int(next(scripted.root.glob("pid-*")).read_text()))
    below = task.children(recursive=True)
    assert len(below) == 2, "keeper and program"
    task.kill()
    psutil.wait_procs(below, timeout=30)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in below)
    assert row.process.wait(60) == -9
