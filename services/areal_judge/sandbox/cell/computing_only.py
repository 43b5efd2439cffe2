"""Confinement of a process that only computes: drops capabilities, then Landlock and seccomp, before it reads a text.

For the math scorers, which parse what a model wrote: no file to write, no program, no process, no socket. Layers that
the machine lacks are left out and said so. For a process that has imported what it needs; there is no way back.
"""

from __future__ import annotations

import os
import sys

from areal_judge.sandbox.kernel import calls as kernel
from areal_judge.sandbox.kernel import landlock, mounts, seccomp

LAYERS = ("no_new_privileges", "landlock", "seccomp")


def confine() -> tuple[str, ...]:
    """Gives up everything that judging text doesn't need; answers which of LAYERS are refused here."""
    lacking = []
    if not kernel.supported():
        return LAYERS
    version = landlock.abi()
    for layer, apply in zip(LAYERS, (_no_new_privileges, _only_libraries, _only_computing), strict=True):
        try:
            apply(version)
        except OSError:
            lacking.append(layer)  # a kernel without it
    return tuple(lacking)


def _no_new_privileges(version: int) -> None:
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.drop_capabilities()


def _only_libraries(version: int) -> None:
    """Reads the interpreter's libraries, which are partly imported late; writes nothing."""
    paths = (*mounts.library_paths(), *(os.path.realpath(path) for path in sys.path if path))
    rules = landlock.ruleset([landlock.PathRule(path, landlock.READ) for path in paths], version)
    try:
        landlock.restrict(rules)
    finally:
        os.close(rules)


def _only_computing(version: int) -> None:
    scoped = version >= landlock.SCOPES_FROM
    seccomp.install(seccomp.program(seccomp.Policy(only_signal=None if scoped else os.getpid())))
