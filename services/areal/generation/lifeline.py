"""Start a program that must not outlive its starter: `python -m areal.generation.lifeline <starter's pid> command…`.

The kernel kills it when the starter dies, however that happens; the request survives `exec`. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Tie this process to its parent, then become the command."""
    starter, command = int(argv[0]), argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != starter:  # it died before the request was made
        sys.exit(75)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
