"""Recovery benchmark: a small job in which role after role is killed, stopped, or cut off; what each fault costs.

    python bench/chaos.py [--faults 100] [--kinds kill stop1 …] [--roles redis …] [--minutes 40] [--seed 0]
    python bench/chaos.py --standby [--faults 100]  kills of a trainer that has a warm standby
    python bench/chaos.py --ettr injected poisson [--minutes 15]
    python bench/chaos.py --table                  adds what was measured to docs/recovery.json and docs/recovery.md,
                                                   once: the rows are then put aside

One job takes many faults: role and moment are drawn by the seed, and the next fault comes when four steps together had
the pace of before and two more were trained. Each job ends with `areal audit`. Writes a line of JSON a fault into
`bench/results/chaos.jsonl`, and goes on from there, and from what docs/recovery.json has, when it is called again.
"nobody" is a moment without a fault: what the measure says of the machine's own jitter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
sys.path.append(str(ROOT / "bench"))

from areal.local.chaos import old_pace  # noqa: E402
from chaos_faults import CUT, TORN, Forwarder, cut_off, full_disk, kill, partition, stopped, tear  # noqa: E402
from chaos_watch import Quiet, Recovery, Watch, effective_time, recovery  # noqa: E402
from support.job_run import SMALL, VICTIMS, JobRun  # noqa: E402
from support.small_disk import small_disk  # noqa: E402

from tools.pages import recovery as page  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "chaos.jsonl"
ENDLESS = ("algorithm.maxSteps=100000", "evaluation.intervalSteps=100000")
NOBODY = "nobody"
STANDBY = "trainer with a standby"  # as the rows name it
ROLES = (NOBODY, *VICTIMS)
LASTS = {"stop1": 1.0, "stop5": 5.0, "stop30": 30.0, "partition": 10.0, "disk": 10.0}
KINDS = ("kill", *LASTS, "torn")
KILLS_A_STANDBY = 6  # of one job
KILLS_A_JOB = 3  # of a role: the launcher waits longer at each restart within ten minutes
OTHERS_A_JOB = 20
WARM = 15  # steps before the first fault
PATIENCE_S = 15.0  # for the old pace, once a new step is trained
LOST_S = 180.0  # for anything
BEGIN_S = 900.0  # for the first steps, on a machine that others use, too
DISK_MB = 256
HEALED = ("infra", "deadline", "poison")  # tombstones that a fault which healed must not leave
FAR_S = 45.0
IMPORTS = {
    "controller": "areal.rollout.controller.main", "worker": "areal.rollout.worker.main",
    "agent": "areal.generation.main", "engine": "areal.engine.main", "reward": "areal.reward.main",
    "trainer": "areal_trainer.main, torch, areal_trainer.run",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A kind of fault and whom it befalls: a role, of "disk" the run, of "torn" a file."""

    kind: str
    role: str


def cells(kinds: Sequence[str], roles: Sequence[str]) -> list[Cell]:
    """All that can be done, in order."""
    able = {"kill": list(ROLES), "partition": list(CUT), "disk": ["run"], "torn": list(TORN)}
    found = [Cell(kind, role) for kind in kinds for role in able.get(kind, list(VICTIMS))]
    return [one for one in found if one.role in roles or one.role not in ROLES]


def schedule(kind: str, cells: Sequence[Cell], faults: int, done: Counter[Cell], seed: int) -> list[list[Cell]]:
    """The jobs that are left to do: each takes every role a few times, in an order drawn by the seed."""
    left = Counter({cell: faults - done[cell] for cell in cells if cell.kind == kind and done[cell] < faults})
    jobs: list[list[Cell]] = []
    draw = random.Random(f"{seed} {kind} {sum(done.values())}")
    while +left:
        job: list[Cell] = []
        for _ in range(KILLS_A_JOB if kind == "kill" else OTHERS_A_JOB):
            turn = [cell for cell in left if left[cell] > 0]
            draw.shuffle(turn)
            job += turn
            left.subtract(turn)
        jobs.append(job)
    return jobs


class Job:
    """One job that takes faults. `write` gets a line a fault, and one at its end."""

    def __init__(
        self, folder: Path, kind: str, write: Callable[[dict[str, Any]], None], forward: bool, standby: bool = False
    ) -> None:
        self._kind = kind
        self._write = write
        self._forwarder = Forwarder(folder / "edges.json") if forward else None
        launcher = ("bench/chaos_launch.py", str(folder / "edges.json")) if forward else ("-m", "areal.cli.main")
        self._standby = standby
        self._overrides = [*SMALL, *ENDLESS, *(["trainer.standby=true"] if standby else [])]
        self.run = JobRun(ROOT / "examples" / "quickstart.yaml", folder / "run", self._overrides, launcher=launcher)
        self.watch = Watch(self.run.run_dir)
        self.done: Counter[Cell] = Counter()

    def start(self) -> None:
        """Start the run, and wait until it is warm."""
        self.run.start()
        self.watch.start()
        self.wait_steps(WARM, BEGIN_S)

    def close(self) -> None:
        self.watch.close()
        self.run.stop()
        if self._forwarder is not None:
            self._forwarder.close()

    def wait_steps(self, more: int, patience_s: float = 240) -> None:
        """Until so many more steps are trained than now."""
        steps = self.watch.steps()
        until = max((one.step for one in steps), default=-1) + more
        self.run.wait_for(f"step {until}", lambda: self.newest() >= until, patience_s)

    def newest(self) -> int:
        return max((one.step for one in self.watch.steps()), default=-1)

    def fault(self, cell: Cell, draw: random.Random) -> Recovery:
        """Put one in at a random moment of the next two steps, and wait for the old pace."""
        if self._standby:
            self.run.wait_for("a standby", self.run.standby, BEGIN_S)
        time.sleep(draw.uniform(0, 2 * old_pace(self.watch.steps(), time.time())))
        load = os.getloadavg()[0]
        assert self.run.process is not None
        began, ended = self._inject(cell, draw)
        began_to_wait = time.monotonic()
        while not (told := self._told(cell, began, ended)).whole and self.run.process.poll() is None:
            waited = time.monotonic() - began_to_wait
            if waited > LOST_S or (told.old_step is not None and waited > told.old_step + PATIENCE_S):
                break
            time.sleep(0.1)
        self.done[cell] += 1
        row = {
            "kind": cell.kind, "role": STANDBY if self._standby else cell.role, "nth": self.done[cell],
            "date": datetime.now(UTC).isoformat()[:19],
            "load": round(load, 2), "step_s": round(old_pace(self.watch.steps(), began), 3),
            "lasted": None if ended is None or self._kind == "torn" else round(ended - began, 3), **asdict(told),
        }  # fmt: skip
        self._write(row)
        if self.run.process.poll() is not None:
            raise RuntimeError(f"the run ended after {cell}:\n{self.run.output[-3000:]}")
        self.wait_steps(2)
        return told

    def _told(self, cell: Cell, began: float, ended: float | None) -> Recovery:
        told = recovery(
            "trainer" if cell.kind == "torn" else cell.role, self.watch.seen(began), self.watch.steps(), began, ended
        )
        return replace(told, detected=None) if cell.kind == "torn" else told  # who cut it off starts it again

    def _inject(self, cell: Cell, draw: random.Random) -> tuple[float, float | None]:
        if cell.role == NOBODY:
            return time.time(), None
        match cell.kind:
            case "kill":
                return kill(self.run, cell.role), None
            case "torn":
                return self._torn(cell.role, draw)
            case "partition":
                assert self._forwarder is not None
                hurt: contextlib.AbstractContextManager[float] = partition(self._forwarder, cell.role)
            case "disk":
                hurt = full_disk(self.run)
            case _:
                hurt = stopped(self.run, cell.role)
        with hurt as began:
            time.sleep(LASTS[cell.kind])
        return began, time.time()

    def _torn(self, what: str, draw: random.Random) -> tuple[float, None]:
        began = cut_off(self.run)
        tear(self.run, what, draw)
        self.run.resume = True
        self.run.start()
        return began, None

    def end(self) -> bool:
        """Stop the run as Ctrl-C does, and audit it."""
        assert self.run.process is not None
        self.run.process.terminate()
        code = self.run.finish(120)
        row = {"kind": "job", "of": self._kind, "faults": sum(self.done.values()), "code": code, **audit(self.run)}
        self._write(row)
        return bool(row["ok"]) and not row["lost"] and not row["duplicated"] and not row["healed"]


def audit(run: JobRun) -> dict[str, Any]:
    """The verdict of `areal audit`. A token older than its bound is one of `problems`."""
    command = [sys.executable, "-m", "areal.cli.main", "audit", str(run.run_dir), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    told = json.loads(done.stdout)
    healed = sum(told["tombstoned"].get(reason, 0) for reason in HEALED)
    kept = {name: told[name] for name in ("ok", "trained", "steps", "lost", "duplicated", "problems")}
    return {**kept, "healed": healed, "oldest": max((age[1] for age in told["ages"].values()), default=0)}


@contextlib.contextmanager
def folder_of(kind: str) -> Iterator[Path]:
    """A directory for a job; of "disk" a small disk."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as made:
        if kind != "disk":
            yield Path(made)
            return
        with small_disk(Path(made) / "disk", DISK_MB) as disk:
            yield disk


def play(
    kind: str, job_cells: Sequence[Cell], seed: str, write: Callable[[dict[str, Any]], None], until: float,
    *, standby: bool = False,
) -> bool:  # fmt: skip
    """One job and its faults; False when it broke a promise or ended by itself. Stops early at `until` (monotonic)."""
    draw = random.Random(seed)
    with folder_of(kind) as folder:
        job = Job(folder, kind, write, forward=kind == "partition", standby=standby)
        try:
            job.start()
            for cell in job_cells:
                if time.monotonic() > until:
                    break
                told = job.fault(cell, draw)
                print(f"  {cell.kind:<9} {cell.role:<11} {told}", flush=True)
            kept = job.end()
        except BaseException:
            with contextlib.suppress(OSError):
                shutil.copytree(job.run.run_dir / "logs", RESULTS.parent / "chaos-failed", dirs_exist_ok=True)
            raise
        finally:
            job.close()
        return kept


def effective(name: str, seed: int, minutes: float, write: Callable[[dict[str, Any]], None]) -> bool:
    """Effective training time under kills: of a tenth of the steps, or as a Poisson process of five minutes' mean."""
    draw = random.Random(f"{seed} {name}")
    with folder_of(name) as folder:
        job = Job(folder, name, write, forward=False)
        try:
            job.start()
            job.wait_steps(30)
            begin, kills, newest = time.time(), [], job.newest()
            due = begin + draw.expovariate(1 / 300)
            while time.time() < begin + 60 * minutes:
                step, hit = job.newest(), 0
                if name == "injected":
                    hit = sum(draw.random() < 0.1 for _ in range(newest, step))
                elif time.time() >= due:
                    hit, due = 1, due + draw.expovariate(1 / 300)
                newest = max(step, newest)
                for _ in range(hit):
                    role = draw.choice(list(VICTIMS))
                    kills.append(kill(job.run, role))
                    job.done[Cell(name, role)] += 1
                    print(f"  {name} {role} at step {step}", flush=True)
                time.sleep(0.02)
            end = time.time()
            if name == "injected":
                time.sleep(FAR_S)
                job.wait_steps(30)
            quiet = Quiet(FAR_S, faults=kills)
            quiet.add(job.watch.steps()[WARM:])
            at_pace, own, steps = effective_time(job.watch.steps(), begin, end, quiet.step_s)
            row = {
                "kind": "ettr", "schedule": name, "faults": len(kills), "wall_s": round(end - begin, 1), "steps": steps,
                "step_s": round(quiet.step_s, 4), "quiet_steps": quiet.steps, "ettr": round(at_pace, 4),
                "ettr_own": round(own, 4), "load": round(os.getloadavg()[0], 2),
                "roles": {cell.role: count for cell, count in job.done.items()},
                "date": datetime.now(UTC).isoformat()[:19],
            }  # fmt: skip
            write(row)
            print(row, flush=True)
            return job.end()
        finally:
            job.close()


def floors() -> dict[str, Any]:
    """Seconds of an interpreter that does nothing, and of each role's imports: the median of three."""
    times = {"python": seconds("pass")}
    times |= {role: seconds(f"import {modules}") for role, modules in IMPORTS.items()}
    load = round(os.getloadavg()[0], 2)
    return {"kind": "floors", "seconds": times, "load": load, "date": datetime.now(UTC).isoformat()[:19]}


def seconds(code: str) -> float:
    """Median seconds of a Python process."""
    times = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
        times.append(time.monotonic() - began)
    return round(sorted(times)[1], 3)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", type=int, default=100, help="of each role and kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--roles", nargs="+", choices=ROLES, default=list(ROLES))
    parser.add_argument("--standby", action="store_true", help="kill a trainer that has a warm standby, only")
    parser.add_argument("--ettr", nargs="*", choices=("injected", "poisson"), help="effective training time, only")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no fault after that; of --ettr its length")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="add what was measured to docs/recovery.json and .md")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no run is left behind
    arguments.out.parent.mkdir(parents=True, exist_ok=True)

    def write(row: dict[str, Any]) -> None:
        with arguments.out.open("a") as file:
            file.write(json.dumps(row) + "\n")

    if arguments.table:
        if rows := read(arguments.out):
            page.add(rows)
            arguments.out.rename(arguments.out.with_suffix(f".{datetime.now(UTC):%Y%m%dT%H%M%S}.added"))
        return
    kept = True
    if arguments.ettr is not None:
        for name in arguments.ettr:
            kept &= effective(name, arguments.seed, min(arguments.minutes, 600.0), write)
    else:
        kept = faults(arguments, write)
    if not kept:
        sys.exit("a promise was broken: see the lines of kind job")


def faults(arguments: argparse.Namespace, write: Callable[[dict[str, Any]], None]) -> bool:
    """All cells that are asked for and not done yet."""
    until = time.monotonic() + 60 * arguments.minutes
    rows = read(arguments.out)
    hour = datetime.now(UTC).isoformat()[:13]
    done = Counter(Cell(row["kind"], row["role"]) for row in rows if row["kind"] in KINDS)
    done.update({Cell(kind, role): count for (kind, role), count in page.counted().items()})
    if arguments.standby:
        left = arguments.faults - done[Cell("kill", STANDBY)]
        kept = True
        while left > 0 and time.monotonic() < until:
            job = [Cell("kill", "trainer")] * min(left, KILLS_A_STANDBY)
            kept &= play("kill", job, f"{arguments.seed} standby {left}", write, until, standby=True)
            left -= len(job)
        return kept
    if not any(row["kind"] == "floors" and row["date"].startswith(hour) for row in rows):
        write(floors())
    kept = True
    wanted = cells(arguments.kinds, arguments.roles)
    for kind in arguments.kinds:
        for number, job in enumerate(schedule(kind, wanted, arguments.faults, done, arguments.seed)):
            if time.monotonic() > until:
                return kept
            kept &= play(kind, job, f"{arguments.seed} {kind} {sum(done.values())} {number}", write, until)
    return kept


if __name__ == "__main__":
    main()
