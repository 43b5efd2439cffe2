"""What a confined process can't do any more, shown beside the same act of a free one."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

ACTS = {
    "read a file of the host": "open('/etc/hostname').read()",
    "read its own service's environment": "open(f'/proc/{os.getppid()}/environ', 'rb').read()",
    "write a file": "open(sys.argv[1] + '/written', 'w').write('x')",
    "make a socket": "socket.socket()",
    "fork": "os.fork() or os._exit(0)",
    "start a program": "subprocess.run(['/bin/true'], check=True)",
    "replace itself": "os.execv('/bin/true', ['true'])",
    "signal its parent": "os.kill(os.getppid(), 0)",
    "name its parent for the kernel to signal": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
    "change a file's mode": "os.chmod(sys.argv[1], 0o700)",
    "change a file's times": "os.utime(sys.argv[1])",
    "trace": "trace()",
}
PROGRAM = """
import ctypes, fcntl, os, socket, subprocess, sys
from areal_judge.sandbox.cell.computing_only import confine

def trace():
    if ctypes.CDLL(None, use_errno=True).ptrace(16, os.getppid(), 0, 0) < 0:
        raise OSError(ctypes.get_errno())

if sys.argv[2] == "confined":
    assert not confine(), "this machine lacks a layer"
try:
    {act}
except OSError:
    sys.exit(9)
sys.exit(0)
"""
pytestmark = pytest.mark.component


def attempt(act: str, place: object, how: str) -> int:
    program = textwrap.dedent(PROGRAM).replace("{act}", act)
    # A shell between us and the program, so that tracing its parent doesn't stop the tests.
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", program, str(place), how]
    return subprocess.run(command, capture_output=True, timeout=60).returncode


@pytest.mark.parametrize("name", ACTS)
def test_a_confined_process_can_only_compute(name: str, tmp_path) -> None:
    assert attempt(ACTS[name], tmp_path, "confined") == 9
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize("name", [name for name in ACTS if name != "trace"])
def test_without_it_the_same_acts_succeed(name: str, tmp_path) -> None:
    assert attempt(ACTS[name], tmp_path, "free") == 0


def test_late_imports_of_the_library_still_work(tmp_path) -> None:
    assert attempt("import sqlite3, xml.dom.minidom, sympy.physics.units", tmp_path, "confined") == 0
