"""`python -m gpu_proof`: tries every claim on this machine's GPU; a line of JSON each, on disk as soon as it is known.

A cell is a process of its own, ended by its id when its time is over, so that one that hangs or has no memory costs its
own claims alone. A claim is `proved` on a card, `failed`, or `not tried` with the reason; what a CPU stood in for
counts as not tried, however well it went. Needs the standard library; the cells need torch and this project.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from gpu_proof.claims import Cell, Claim, chosen

BENCH = Path(__file__).resolve().parents[1]
RESULTS = BENCH / "results"
LEAST_S = 15.0  # a cell isn't begun with less: its imports take as long
GRACE_S = 5.0  # between asking a process to end and ending it
MARK = "--- cell"  # where a cell begins in the log
POLL_S = 0.5  # between two looks at the clock
NO_CARD = "no CUDA device"
_NO_CONFIG = 64  # what every command here ends with where the machine isn't the one it needs

Command = Callable[[Cell], Sequence[str]]


@dataclass(frozen=True)
class Machine:
    """The card and what drives it; `card` is empty where torch sees none."""

    card: str = ""
    cards: int = 0
    memory: int = 0  # bytes of the first card
    driver: str = ""
    torch: str = ""


class Lines:
    """The result file. A line is on disk when `add` returns."""

    def __init__(self, path: Path, machine: Machine) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")
        self._machine = machine
        self.rows: list[dict[str, Any]] = []

    def add(self, cell: Cell, claim: Claim, state: str, **told: Any) -> None:
        """Write a claim's line, and show it."""
        row = {
            "claim": claim.name, "says": claim.says, "cell": cell.name, "state": state, "measured": None,
            "bound": claim.bound, "unit": claim.unit, "stand_in": False, "reason": "", **told,
            "card": self._machine.card, "driver": self._machine.driver, "torch": self._machine.torch,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows.append(row)
        print(shown(row), flush=True)

    def close(self) -> None:
        self._file.close()


def shown(row: Mapping[str, Any]) -> str:
    """A claim's line for people."""
    number = "" if row["measured"] is None else f"{row['measured']:.4g} {row['unit']} ({row['bound']})"
    return f"{row['state']:<10}{row['claim']:<22}{number}{'; ' if number and row['reason'] else ''}{row['reason']}"


@dataclass
class Proof:
    """Tries cells one after another until the time is over."""

    machine: Machine
    lines: Lines
    command: Command
    log: Path
    deadline: float  # of the monotonic clock
    interrupted: str = ""

    def run(self, cells: Sequence[Cell], *, stand_ins: bool) -> None:
        """Every claim of every cell has a line on return."""
        for cell in cells:
            reason = self._why_not(cell, stand_ins=stand_ins)
            if reason:
                self._rest(cell, set(), "not tried", reason)
            else:
                self._try(cell)

    def interrupt(self, number: int, _frame: object) -> None:
        """A signal's handler: the cell that runs is ended, the others aren't begun."""
        self.interrupted = f"interrupted by {signal.Signals(number).name}"

    def _why_not(self, cell: Cell, *, stand_ins: bool) -> str:
        if self.interrupted:
            return self.interrupted
        if not self.machine.card and not (stand_ins and cell.stands_in):
            return NO_CARD
        if self.machine.card and cell.cards > self.machine.cards:
            return f"{cell.cards} cards are needed, {self.machine.cards} is here"
        return "" if self.deadline - time.monotonic() >= LEAST_S else "the time given was over"

    def _try(self, cell: Cell) -> None:
        began = time.monotonic()
        limit = min(cell.limit_s, self.deadline - began)
        known: set[str] = set()
        late = False
        with self.log.open("a") as log:
            print(MARK, cell.name, file=log, flush=True)
            process = subprocess.Popen(
                self.command(cell), stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True,
                start_new_session=True, env=environment(),
            )  # fmt: skip
            said = Said(process)
            while not said.ended and not self.interrupted and not late:
                self._measured(cell, said.next(POLL_S), known, began)
                late = time.monotonic() >= began + limit
            code = end(process, GRACE_S if said.ended else 0)
        while not said.ended and (told := said.next(POLL_S)):  # what it said before its end
            self._measured(cell, told, known, began)
        self._rest(cell, known, *self._end_of(cell, code, late=late, limit=limit))

    def _end_of(self, cell: Cell, code: int, *, late: bool, limit: float) -> tuple[str, str]:
        """State and reason of the claims that a cell has not told of."""
        if self.interrupted:
            return "not tried", self.interrupted
        if late and limit < cell.limit_s:
            return "not tried", "the time given was over"
        if late:
            return "failed", f"not done after {limit:.0f} s"
        return "failed", f"its process ended with {code}: {last_words(self.log)}" if code else "it was not measured"

    def _measured(self, cell: Cell, told: Mapping[str, Any], known: set[str], began: float) -> None:
        if not told:
            return
        seconds = round(time.monotonic() - began, 1)
        claim = next(one for one in cell.claims if one.name == told["claim"])
        known.add(claim.name)
        if "reason" in told:
            self.lines.add(cell, claim, "not tried", reason=told["reason"], seconds=seconds)
            return
        value, stand_in = told["measured"], not self.machine.card
        state, reason = "proved", ""
        if value is None or not claim.holds(value):
            state = "failed"
        elif stand_in:
            state, reason = "not tried", f"{NO_CARD}: a CPU stood in"
        more = {"more": told["more"]} if told.get("more") else {}
        self.lines.add(cell, claim, state, measured=value, reason=reason, stand_in=stand_in, seconds=seconds, **more)

    def _rest(self, cell: Cell, known: set[str], state: str, reason: str) -> None:
        for claim in cell.claims:
            if claim.name not in known:
                told = (state, reason) if self.machine.card or claim.stand_in else ("not tried", NO_CARD)
                self.lines.add(cell, claim, told[0], reason=told[1], stand_in=False)


def environment() -> dict[str, str]:
    """A cell's: with bytecode, without which each of them compiles torch's sources again."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Said:
    """What a cell says: a JSON object a line, until its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.ended = False
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with suppress(ValueError):  # it was ended in the middle of a line
                self._queue.put(json.loads(line))
        self._queue.put(None)

    def next(self, patience_s: float) -> dict[str, Any]:
        """The next object; an empty one when none comes in time, or no more comes."""
        try:
            told = self._queue.get(timeout=patience_s)
        except queue.Empty:
            return {}
        self.ended = told is None
        return told or {}


def end(process: subprocess.Popen[str], patience_s: float) -> int:
    """End a cell, once it had its time to end by itself, and what is left of its session; its exit code."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    _signal(process, signal.SIGKILL)
    return process.wait()


def _signal(process: subprocess.Popen[str], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def last_words(log: Path) -> str:
    """The last error that a cell wrote to its log; else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    mine = lines[max(number for number, line in enumerate(lines) if line.startswith(MARK)) :]
    errors = [line for line in mine if "Error: " in line]
    return (errors or mine)[-1][:300]


def probed(command: Sequence[str]) -> Machine:
    """The machine as a process with torch sees it; without a card where that fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment())
    if done.returncode:
        raise SystemExit(f"torch can't be asked for the card: {done.stderr.strip()[-2000:]}")
    return Machine(**json.loads(done.stdout.splitlines()[-1]))


def result_file(machine: Machine, results: Path = RESULTS) -> Path:
    """Where the lines go: of a card, a file that is kept in the repository."""
    if not machine.card:
        return results / "gpu-proof-without-a-card.jsonl"
    card = "-".join(machine.card.lower().split())
    return results / "gpu-proof" / f"{datetime.now(UTC):%Y-%m-%d}-{card}.jsonl"


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many claims are in which state, and which failed."""
    counts = {state: sum(row["state"] == state for row in rows) for state in ("proved", "failed", "not tried")}
    failed = [f"  failed: {row['claim']}: {row['says']}" for row in rows if row["state"] == "failed"]
    return "\n".join([", ".join(f"{count} {state}" for state, count in counts.items()), *failed])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu_proof", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1500, help="for all claims together")
    parser.add_argument("--out", type=Path, help="the file of lines; else bench/results/gpu-proof/DATE-CARD.jsonl")
    parser.add_argument("--cells", default="", help="names of cells, or of kinds, with commas between")
    parser.add_argument("--stand-ins", choices=("few", "all"), help="where there is no card, try on a CPU what can be")
    parser.add_argument("--list", action="store_true", help="show the claims, and try none")
    given = parser.parse_args(arguments)
    cells = chosen(filter(None, given.cells.split(",")))
    if given.stand_ins == "few":
        cells = [cell for cell in cells if cell.few]
    if given.list:
        print("\n".join(f"{one.name:<24}{cell.name:<24}{one.says}" for cell in cells for one in cell.claims))
        return 0
    python = [sys.executable, "-m", "gpu_proof.cell"]
    deadline = time.monotonic() + given.seconds
    machine = probed([*python, "--machine"])
    out = given.out or result_file(machine)
    lines = Lines(out, machine)
    log = out.with_suffix(".log")
    log.write_text("")
    proof = Proof(machine, lines, lambda cell: [*python, cell.name], log, deadline)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, proof.interrupt)
    print(f"{machine.card or NO_CARD}, driver {machine.driver or 'absent'}, torch {machine.torch}: {out}", flush=True)
    proof.run(cells, stand_ins=given.stand_ins is not None)
    lines.close()
    print(summary(lines.rows))
    if any(row["state"] == "failed" for row in lines.rows):
        return 1
    return 0 if machine.card or given.stand_ins else _NO_CONFIG


if __name__ == "__main__":
    sys.exit(main())
