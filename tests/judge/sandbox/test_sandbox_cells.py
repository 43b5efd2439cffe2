"""Whom a zygote gives a run whose cell fails before the run is handed over. Without processes: cells are lines here."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from areal_judge.sandbox.cell import messages
from areal_judge.sandbox.cell.cell_table import CellTable
from areal_judge.sandbox.cell.confinement import Confinement
from areal_judge.sandbox.cell.means import Means
from areal_judge.sandbox.cell.messages import CellShape
from areal_judge.sandbox.cell.occupancy import Assignment, Cell, CellState
from areal_judge.sandbox.kernel.cgroups import Groups
from areal_judge.sandbox.values import ALL_LAYERS

SHAPE = CellShape(False, False, 1 << 20, 64)
ORDER: dict[str, Any] = {
    "op": "run", "id": 7, "shape": SHAPE, "wall_s": 1.0, "keep": [], "keep_bytes": 0, "tell": False, "channel": False,
    "memory": 1 << 20, "tasks": 2,
}  # fmt: skip
DIED = {"status": 9, "cpu_s": 0.0, "rss": 0, "ended": 1.0, "full": False}


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def zygote() -> tuple[CellTable, socket.socket]:
    """The cells of a zygote, and the service's end of its line."""
    service, link = pair()
    confinement = Confinement(Means(), ALL_LAYERS, False)
    made = CellTable(link, Means(), ALL_LAYERS, confinement, None, Groups.none(), 200000, 1)
    made._inside = True
    service.settimeout(5)
    return made, service


def failing(cells: CellTable, *, used: bool) -> Cell:
    """A cell that died while it made a program for a run."""
    entry, _ = pair()
    made = Cell(0, SHAPE, 0, entry, None, None, alive=False, used=used, run=Assignment(dict(ORDER), []))
    cells._by_run[7] = made
    return made


def test_a_run_that_a_used_cell_could_not_begin_goes_to_another() -> None:
    cells, _ = zygote()
    mine, theirs = pair()
    ready = Cell(0, SHAPE, 1, mine, None, None, state=CellState.READY)
    cells._cells[1] = ready
    cells._lines.add(mine, ready)
    cells._report(failing(cells, used=True), dict(DIED))
    theirs.settimeout(5)
    handed, _ = messages.receive(theirs)
    assert handed == messages.RUN
    assert (cells._by_run[7], ready.state) == (ready, CellState.RUNNING)


def test_a_run_that_a_new_cell_could_not_begin_is_the_machines_fault() -> None:
    cells, service = zygote()
    cells._report(failing(cells, used=False), dict(DIED))
    said, _ = messages.receive(service)
    assert said is not None
    assert (said["event"], said["id"]) == ("ended", 7)
    assert "before its program began" in said["failure"]
    assert cells._by_run == {}


@pytest.mark.parametrize("reason", ["cancel", "wall"])
def test_a_run_that_was_ended_while_it_waited_is_not_begun_again(reason: str) -> None:
    cells, service = zygote()
    waiting = failing(cells, used=True)
    waiting.reason = reason
    cells._report(waiting, dict(DIED))
    said, _ = messages.receive(service)
    assert said is not None
    assert (said["event"], said["reason"], said["failure"]) == ("ended", reason, "")


def test_the_time_of_a_run_counts_from_its_first_instruction_whenever_that_is_heard() -> None:
    cells, _ = zygote()
    entry, program = pair()
    waiting = Cell(0, SHAPE, 1, entry, None, None, alive=False, state=CellState.READY, run=Assignment(dict(ORDER), []))
    cells._cells[1] = waiting
    cells._lines.add(entry, waiting)
    cells._hand_over(waiting)
    began = waiting.handed + 0.75
    messages.send(program, {"go": began, "cpu_s": 0.0})
    assert cells._lines.wait(0) == [], "that a program began wakes nobody"
    cells._look_at_deadline(waiting, waiting.handed + ORDER["wall_s"])
    assert (waiting.went, waiting.deadline) == (began, began + ORDER["wall_s"])


def test_a_cell_that_ended_by_itself_is_given_no_run() -> None:
    cells, service = zygote()
    entry, _ = pair()
    cells._cells[1] = Cell(
        1, SHAPE, 0, None, None, None, state=CellState.READY
    )  # its end was heard, it isn't reaped yet
    cells._cells[2] = good = Cell(2, SHAPE, 1, entry, None, None, state=CellState.READY)
    cells._lines.add(entry, good)
    cells._assign(Assignment(dict(ORDER), []))
    assert good.state is CellState.RUNNING
    service.close()
