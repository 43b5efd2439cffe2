"""Subreaper of one scorer process: kills all its descendants when the scorer or the service ends, or on SIGTERM.

A process group is not enough: what user code starts may lead a group or a session of its own. A descendant whose parent
dies becomes the keeper's child, so none gets away and none stays a zombie. The keeper exits as the scorer did.

Forked from a warm fork server and told of the service's death by the kernel: a scorer starts without a new interpreter.
`areal.processes.keeper` does the same for a role's command: execed in a fresh interpreter, spoken for on a socket.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Sequence

from areal_judge.sandbox.cell import orphans
from areal_judge.sandbox.kernel import calls as kernel

_AWAITED = (signal.SIGTERM, signal.SIGCHLD)


def become_scorer(service: int, descriptors: Sequence[int]) -> None:
    """Forks: returns in the scorer, which dies with its keeper; never returns in the keeper.

    Args:
        service: pid of the parent, whose death ends everything.
        descriptors: the scorer's, which the keeper must not hold open.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != service:
        os._exit(0)
    keeper = os.getpid()
    scorer = os.fork()
    if scorer == 0:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(0)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return
    code = -signal.SIGKILL
    try:
        for descriptor in descriptors:
            os.close(descriptor)
        code = _watch(scorer)
    finally:
        orphans.end(keeper, frozenset())
        _leave(code)


def _watch(scorer: int) -> int:
    """Reaps until the scorer has ended (its exit code, negative for a signal) or the keeper is told to end."""
    while True:
        if signal.sigwait(_AWAITED) == signal.SIGTERM:
            return -signal.SIGKILL
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == scorer:
                return os.waitstatus_to_exitcode(ended[1])


def _leave(code: int) -> None:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)
