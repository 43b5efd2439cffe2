"""How a zygote forks a cell: into a new pid namespace where cells have one, without leaving its own.

A process that has made a pid namespace for its children can't make another before it has gone back to its own. Where
that is impossible (gVisor), a short-lived shim makes the namespace and the cell in it, and the cell becomes the
zygote's child when the shim ends.
"""

from __future__ import annotations

import os
import socket

from areal.reward.sandbox import cell, kernel
from areal.reward.sandbox.place import Place


class Forks:
    """The way that works here."""

    def __init__(self, namespaces: bool, returns: bool) -> None:
        self._namespaces = namespaces
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if namespaces and returns else None

    def fork(self, place: Place, control: socket.socket, entry: socket.socket) -> int:
        """Forks a child that becomes a cell; its pid. Raises OSError when there is no child."""
        if not self._namespaces:
            return _child(place, control, entry)
        if self._own is None:
            return _by_shim(place, control, entry)
        kernel.unshare(kernel.CLONE_NEWPID)
        try:
            return _child(place, control, entry)
        finally:
            kernel.setns(self._own, kernel.CLONE_NEWPID)


def _child(place: Place, control: socket.socket, entry: socket.socket) -> int:
    pid = kernel.fork()
    if pid == 0:
        cell.become(place, control, entry)
    return pid


def _by_shim(place: Place, control: socket.socket, entry: socket.socket) -> int:
    reader, writer = os.pipe()
    shim = kernel.fork()
    if shim == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWPID)
            os.write(writer, str(_child(place, control, entry)).encode())
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
