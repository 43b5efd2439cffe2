"""Poll set of a zygote: the service's line, a wake-up for ended children, and the lines of its cells."""

from __future__ import annotations

import select
import signal
import socket

from areal_judge.sandbox.cell.occupancy import Cell


class CellLines:
    """Lines of cells by descriptor, and whatever else is waited for."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._cells: dict[int, Cell] = {}

    def listen(self, line: socket.socket) -> None:
        self._poll.register(line, select.POLLIN)

    def listen_for_children(self) -> socket.socket:
        """A line that says something whenever a child has ended."""
        woken, self._wake = socket.socketpair()
        for end in (woken, self._wake):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self.listen(woken)
        return woken

    def add(self, line: socket.socket, cell: Cell) -> None:
        """Listens to a cell's line."""
        line.setblocking(False)
        self._cells[line.fileno()] = cell
        self.listen(line)

    def leave_unheard(self, line: socket.socket) -> None:
        """What is said on it waits until somebody asks; only its end is told."""
        self._poll.modify(line, 0)

    def hear_again(self, line: socket.socket) -> None:
        self._poll.modify(line, select.POLLIN)

    def cell(self, descriptor: int) -> Cell | None:
        """Whose line this is; None for one that was forgotten."""
        return self._cells.get(descriptor)

    def forget(self, line: socket.socket) -> None:
        """Closes a cell's line."""
        self._cells.pop(line.fileno(), None)
        self._poll.unregister(line)
        line.close()

    def wait(self, patience_ms: int) -> list[int]:
        """The descriptors that have something to say."""
        return [descriptor for descriptor, _ in self._poll.poll(patience_ms)]
