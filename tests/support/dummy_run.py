"""`areal run` with dummies for roles: the real command, supervisor, records, errors; roles that do as they are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
from support.tiny_job import make_tiny_job

# The command line with another role table: one real gRPC role, and a trainer that writes what a trainer writes.
MAIN = """
import os, sys
from areal.cli.main import app, guarded
from areal.local import run
from areal.plan import RoleRow

HERE, TRAINER, OTHER = sys.argv.pop(1), sys.argv.pop(1), os.environ.get("OTHER_ROLE", "")

def table(resolved):
    def row(name, code, ready, depends_on=(), restart="in_place"):
        command = [sys.executable, HERE, code, str(resolved.layout.resolved), str(resolved.ports[name].get("grpc", 0))]
        role, ports = name.partition("-")[0], resolved.ports[name]
        return RoleRow(name, role, 0, command, {}, ports, list(depends_on), ready, 5.0, 30.0, restart, 2)
    more = [row(OTHER, os.environ["OTHER_CODE"], "none")] if OTHER else []
    worker = [row("worker-0", "worker", "grpc")] if os.environ.get("WORKER", "1") else []
    return [*worker, *more, row("trainer", TRAINER, "none", ["worker-0"] if worker else [], "epoch")]

run.role_table = table
sys.exit(guarded(app))
"""

# The same, forked from a process that has imported everything and staged the job once: twenty times cheaper a run.
FORKS = """
import json, os, shutil, signal, sys
from pathlib import Path
HERE, FOLDER = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
import areal.local.run as run, areal.local.finish, areal.local.staging as staging, areal.local.display
from areal.cli import jobs
from areal.cli.main import app, guarded
from areal.plan import ResolvedJob
TEMPLATE = FOLDER / "template"
os.chdir(FOLDER)
request = staging.StagingRequest(FOLDER / "job.yaml", ["rollout.gateway.replicas=1"], TEMPLATE)
job = staging.load(request)
staging.stage(request, job, print)
run.load = lambda request, say: job

def stage(request, job, say, take):
    target = request.directory(job)
    shutil.copytree(TEMPLATE, target, dirs_exist_ok=True)
    found = target / "resolved.json"
    found.write_text(found.read_text().replace(str(TEMPLATE), str(target)))
    return ResolvedJob.load(target)

run.stage = stage
print("ready", flush=True)
for line in sys.stdin:
    cell = json.loads(line)
    if (pid := os.fork()) == 0:
        out = os.open(cell["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1), os.dup2(out, 2)
        os.environ.update(cell["env"])
        sys.argv = ["main.py", str(HERE), cell["trainer"], "run", "job.yaml", "--run-dir", cell["run_dir"]]
        sys.exit = lambda code: os._exit(int(code))
        exec(compile((FOLDER / "main.py").read_text(), "main.py", "exec"))
        os._exit(70)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""

ROLE = """
import asyncio, contextlib, errno, json, os, signal, socket, sys, time
if sys.argv[1].startswith("early: "):
    exec(sys.argv[1].removeprefix("early: "))
from pathlib import Path  # and no more than errors: a dummy starts within a tenth of a second
from areal.errors import ArealError, Cause, ConfigError, DataError, InfraError, as_bug, of_machine
from areal.processes.exits import write_error
what, root, port = sys.argv[1], Path(sys.argv[2]).parent, int(sys.argv[3])

def steps(first, last):
    for step in range(first, last):
        metric(step)

def metric(step, **fields):
    line = {"step": step, "reward_mean": 0.5, "tokens": 8, "wall_s": 0.1, "at": time.time(), **fields}
    with (root / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\\n")

async def worker():
    from areal.net.server import GrpcServer
    from areal.observe.waits import ProgressCounter
    from areal.observe.waits import WaitRegistry
    waits, stop = WaitRegistry("worker-0"), asyncio.Event()
    token = (root / "access" / "token.operator").read_text()
    server = GrpcServer("worker-0", token, waits=waits, progress=ProgressCounter())
    await server.start(port)
    await server.set_ready(True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, time.sleep, 600)
    with waits.waiting("leases", "a lease from the controller", deadline_s=30):
        await stop.wait()
    await server.stop(0)

def fail(error):
    told = error if isinstance(error, ArealError) else of_machine(error) or as_bug(error)
    print(f"{told.kind} error: {told}", file=sys.stderr)
    write_error(told)
    sys.exit(told.exit_code)

def saved(*_):
    (root / "saved").touch()
    sys.exit(143)

signal.signal(signal.SIGTERM, saved)
if what == "worker":
    try:
        asyncio.run(worker())
    except Exception as error:
        fail(error)
elif what.startswith("code: "):
    try:
        exec(what.removeprefix("code: "))
    except Exception as error:
        fail(error)
elif what == "well":
    steps(0, 3)
elif what == "badly":
    fail(DataError("row 7 has no prompt", fix="add the prompt"))
elif what == "fills":
    steps(0, 1)
    from areal.ledger.lines import LineWriter
    try:
        account = LineWriter(root / "account.jsonl")
        with contextlib.suppress(OSError), (root.parent / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        while True:
            account.append([{"text": "x" * 4096}])
    except InfraError as error:
        fail(error)
elif what == "once":
    if os.environ["AREAL_EPOCH"] == "0":
        os.kill(os.getpid(), 9)
    steps(0, 3)
else:
    steps(0, 1)
    while True:
        time.sleep(0.05)  # a signal just before one long sleep would be handled after it
"""


def make(folder: Path) -> None:
    """The job and the dummies, in `folder`."""
    make_tiny_job(folder)
    (folder / "main.py").write_text(MAIN)
    (folder / "role.py").write_text(ROLE)


def begin(folder: Path, trainer: str, *flags: str) -> subprocess.Popen[str]:
    """Run the job, whose trainer does `trainer`."""
    command = [sys.executable, str(folder / "main.py"), str(folder / "role.py"), trainer, "run", "job.yaml", *flags]
    return subprocess.Popen(
        command, cwd=folder, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip


class Runs:
    """Runs of the job one after another, each forked from one process. Close it when done."""

    def __init__(self, folder: Path) -> None:
        make(folder)
        (folder / "forks.py").write_text(FORKS)
        command = [sys.executable, str(folder / "forks.py"), str(folder / "role.py"), str(folder)]
        env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "400"}
        with (folder / "forks.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout
        while (line := self._answers.readline()) and line.strip() != "ready":
            pass

    def begin(self, run_dir: Path, trainer: str, out: Path, other: tuple[str, str], *, worker: bool) -> psutil.Process:
        """Begin a run; `ended` must follow before the next."""
        env = {"OTHER_ROLE": other[0], "OTHER_CODE": other[1], "WORKER": "1" if worker else ""}
        order = {"run_dir": str(run_dir), "trainer": trainer, "out": str(out), "env": env}
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()
        return psutil.Process(int(self._answers.readline()))

    def ended(self) -> int:
        """Exit code of the run, when it has ended."""
        return int(self._answers.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait(60)
