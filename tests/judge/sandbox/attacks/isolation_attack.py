"""How attacks on isolation are made: their limits, and system calls by number for those that need them."""

from __future__ import annotations

from areal_judge.sandbox.values import Limits
from sandbox.attacks.table import Attack, Category, Seen

SHORT = Limits(wall_s=2.0, cpu_s=1.0, processes=8, memory_bytes=256 << 20)
RAW = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *arguments)
    return result, ctypes.get_errno()
def word(name, result, error):
    if result >= 0 or error not in (errno.EPERM, errno.ENOSYS, errno.EACCES, errno.EAGAIN):
        print("REACHED", name, result, error, flush=True)
"""


def isolation(
    name: str, must_not: str, seen: Seen, layers: tuple[str, ...], source: str, *, limits: Limits = SHORT,
    keep: tuple[str, ...] = (), never_clean: bool = False,
) -> Attack:  # fmt: skip
    return Attack(
        name, Category.ISOLATION, must_not, seen, layers, source, limits=limits, several=True, keep=keep,
        never_clean=never_clean,
    )  # fmt: skip
