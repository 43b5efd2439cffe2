"""A program's process under an older Landlock, whose rules don't scope signals: what it can still send, and to whom.

The older kernel is emulated by a lower version of the rules, which is all that an older kernel would understand.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.as_user import UID, needs_root

pytestmark = pytest.mark.component

_ACTS = """
import ctypes, fcntl, os, signal, sys
from areal_judge.sandbox.cell.confinement import Confinement
from areal_judge.sandbox.cell.place import Means
from areal_judge.sandbox.cell.messages import CellShape
from areal_judge.sandbox.kernel import landlock
from areal_judge.sandbox.values import Layers

version, seccomp, uid = int(sys.argv[1]), sys.argv[2] == "filtered", int(sys.argv[3])
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")

def by_the_kernel(command, whom):
    reader, writer = os.pipe()
    fcntl.fcntl(reader, command, whom)

siginfo = ctypes.create_string_buffer(128)
numbers = {"x86_64": (234, 200, 129, 424), "aarch64": (131, 130, 138, 424)}[os.uname().machine]
acts = {
    "kill": lambda: os.kill(parent, 0),
    "killpg": lambda: os.kill(-os.getpgid(parent), 0),
    "tgkill": lambda: call(numbers[0], parent, parent, 0),
    "tkill": lambda: call(numbers[1], parent, 0),
    "sigqueue": lambda: call(numbers[2], parent, 0, siginfo),
    "pidfd": lambda: call(numbers[3], os.pidfd_open(parent), 0, 0, 0),
    "F_SETOWN": lambda: by_the_kernel(fcntl.F_SETOWN, parent),
    "F_SETOWN_EX": lambda: by_the_kernel(15, (ctypes.c_int * 2)(1, parent)),
    "F_SETSIG": lambda: by_the_kernel(10, signal.SIGKILL),
}
rules = landlock.ruleset([landlock.PathRule("/", landlock.READ)], version)
confinement = Confinement(Means(landlock_abi=version), Layers(seccomp=seccomp), False)
if uid:
    os.setresuid(uid, uid, uid)
parent = os.getpid()
if program := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
os.setpgid(0, 0)
confinement.hold(uid, CellShape(False, False, 0, 0), rules)
for name, act in acts.items():
    try:
        act()
        print(name)
    except OSError:
        pass
"""


def reached(version: int, seccomp: str, uid: int) -> list[str]:
    """The acts that got through to the process above the program."""
    command = [sys.executable, "-c", _ACTS, str(version), seccomp, str(uid)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout.split()


@pytest.mark.parametrize("uid", [0, UID])
@pytest.mark.parametrize("version", [1, 5, 6])
def test_no_process_is_reached_whatever_the_kernels_landlock(version: int, uid: int) -> None:
    if uid and needs_root():
        pytest.skip(needs_root())
    assert reached(version, "filtered", uid) == []


def test_without_the_filter_an_older_landlock_lets_every_signal_through() -> None:
    assert {"kill", "tgkill", "tkill", "F_SETOWN", "F_SETSIG"} <= set(reached(5, "open", 0))
