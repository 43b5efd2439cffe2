"""Set-up of a cell in the child that a zygote forked.

cgroup → session → descriptors, and then, where cells are namespaces: namespaces → mounts → capabilities → the warden,
process 1 of the cell, which forks one program after the other. Where they are not, the child is the program's process.
A step that fails ends the child with status 120 and a message; no code of a run is then ever reached.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from typing import NoReturn

from areal_judge.sandbox.cell import program
from areal_judge.sandbox.cell.place import CONTROL, ENTRY, FIRST_FREE, RULES, CellPlace
from areal_judge.sandbox.cell.warden import Warden
from areal_judge.sandbox.cell.warm_up import announce_ready
from areal_judge.sandbox.kernel import calls as kernel
from areal_judge.sandbox.kernel import mounts
from areal_judge.sandbox.kernel.calls import set_signal


def become(place: CellPlace, control: socket.socket, entry: socket.socket) -> NoReturn:
    """Turns the calling child into a cell. Never returns."""
    step, tell = "cgroup", entry
    try:
        for descriptor in place.join:
            os.write(descriptor, b"0")
        step = "session"
        _default_signals()
        os.setsid()
        step = "descriptors"
        _arrange_descriptors(place, control, entry)
        tell = socket.socket(fileno=ENTRY)
        os.umask(0o022)
        if place.inside:
            step = "namespaces"
            _unshare(place)
            step = "mounts"
            if place.means.proc:
                mounts.mount_proc()
            step = "warden"
            Warden(place, tell).serve()
        step = "filters"
        os.close(CONTROL)
        os.chdir("/")
        ruled = place.held and place.rules is not None
        place.confinement.hold(place.uid, place.shape, RULES if ruled else None)
        if ruled:
            os.close(RULES)
        step = "ready"
        announce_ready(tell)
    except BaseException as error:
        program.give_up(tell, step, error)
    program.serve(tell, place, None, lambda: None)


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        set_signal(number, kernel.DEFAULT_ACTION)
    set_signal(signal.SIGINT, signal.default_int_handler)


def _arrange_descriptors(place: CellPlace, control: socket.socket, entry: socket.socket) -> None:
    """Control, entry and ruleset become 3, 4, 5; with the layer on, nothing else stays."""
    sources = [control.detach(), entry.detach(), place.rules]
    free = [None if source is None else fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE) for source in sources]
    for index, source in enumerate(free):
        if source is not None:
            os.dup2(source, CONTROL + index, inheritable=False)
            os.close(source)
    if place.layers.descriptors:
        kernel.close_from(FIRST_FREE)


def _unshare(place: CellPlace) -> None:
    flags = kernel.CLONE_NEWNS | place.means.more_namespaces
    if not place.layers.network:
        flags &= ~kernel.CLONE_NEWNET
    kernel.unshare(flags)
