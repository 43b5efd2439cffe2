"""Fork of a cell: into a new pid namespace where cells have one, without leaving the zygote's own.

A process that has made a pid namespace for its children can't make another before it has gone back to its own. Where
that is impossible (gVisor), a short-lived shim makes the namespace and the cell in it, and the cell becomes the
zygote's child when the shim ends.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from areal_judge.sandbox.cell import cell
from areal_judge.sandbox.cell.place import CellPlace
from areal_judge.sandbox.kernel import calls as kernel


class Forks:
    """The way that works here."""

    def __init__(self, namespaces: bool, returns: bool, forget: Callable[[], None]) -> None:
        """`forget` is called in each child: it drops what the zygote knows of other runs."""
        self._forget = forget
        self._namespaces = namespaces
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if namespaces and returns else None

    def fork(self, place: CellPlace, control: socket.socket, entry: socket.socket) -> int:
        """Forks a child that becomes a cell; its pid. Raises OSError when there is no child."""
        if not self._namespaces:
            return self._child(place, control, entry)
        if self._own is None:
            return self._by_shim(place, control, entry)
        kernel.unshare(kernel.CLONE_NEWPID)
        try:
            return self._child(place, control, entry)
        finally:
            kernel.setns(self._own, kernel.CLONE_NEWPID)

    def _child(self, place: CellPlace, control: socket.socket, entry: socket.socket) -> int:
        pid = kernel.fork()
        if pid == 0:
            self._forget()
            cell.become(place, control, entry)
        return pid

    def _by_shim(self, place: CellPlace, control: socket.socket, entry: socket.socket) -> int:
        reader, writer = os.pipe()
        shim = kernel.fork()
        if shim == 0:
            try:
                kernel.unshare(kernel.CLONE_NEWPID)
                os.write(writer, str(self._child(place, control, entry)).encode())
            finally:
                os._exit(0)
        os.close(writer)
        try:
            told = os.read(reader, 32)
        finally:
            os.close(reader)
            os.waitpid(shim, 0)
        if not told:
            raise OSError("no process could be made in a new pid namespace")
        return int(told)
