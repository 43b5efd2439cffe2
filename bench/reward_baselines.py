"""Baselines of the sandbox benchmark: a bare `subprocess` and bubblewrap, running the same Python program."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

TRIVIAL = "print(1)"

Once = Callable[[], None]


def bare_subprocess() -> None:
    """One cold interpreter, without any isolation."""
    done = subprocess.run([sys.executable, "-I", "-c", TRIVIAL], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"1\n"


def bubblewrap() -> None:
    """One cold interpreter in fresh namespaces; bubblewrap limits nothing and filters nothing by default."""
    command = ["bwrap", "--ro-bind", "/", "/", "--tmpfs", "/tmp", "--dev", "/dev", "--unshare-all", "--die-with-parent"]
    done = subprocess.run([*command, sys.executable, "-I", "-c", TRIVIAL], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"1\n"


def available() -> dict[str, Once]:
    """The baselines of this machine. Without bubblewrap (Debian: bubblewrap) only the bare one."""
    found: dict[str, Once] = {"subprocess": bare_subprocess}
    if shutil.which("bwrap"):
        found["bubblewrap"] = bubblewrap
    return found


def latencies(once: Once, runs: int) -> list[float]:
    """Seconds of each of `runs` runs, one after the other."""
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        once()
        taken.append(time.perf_counter() - began)
    return taken


def rate(once: Once, runs: int, slots: int) -> float:
    """Runs a second with `slots` at once."""
    left, lock = [runs], threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if left[0] == 0:
                    return
                left[0] -= 1
            once()

    began = time.perf_counter()
    with ThreadPoolExecutor(slots) as pool:
        for future in [pool.submit(work) for _ in range(slots)]:
            future.result()
    return runs / (time.perf_counter() - began)
