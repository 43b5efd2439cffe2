"""Peak resident memory of a run by role: looked at all the time, for processes that are gone tell nothing."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType

import psutil
from support.job_run import VICTIMS, JobRun

EVERY_S = 0.5
_WORDS = {**VICTIMS, "engine of SGLang": ("areal.engine.sglang_cpu",)}


class RoleMemory:
    """Looks at a run's processes while it is entered. Memory that processes of a role share counts in each of them."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._peaks: dict[int, tuple[str, int]] = {}  # by process: its role, kB
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> RoleMemory:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def megabytes(self) -> dict[str, int]:
        """Peaks of a role's processes, added up."""
        found: defaultdict[str, int] = defaultdict(int)
        for role, peak in self._peaks.values():
            found[role] += peak
        return {role: peak >> 10 for role, peak in found.items()}

    def _look_on(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        assert self._run.process is not None
        try:
            family = psutil.Process(self._run.process.pid).children(recursive=True)
        except psutil.Error:
            return
        for process in family:
            role = self._role(process)
            if role is not None:
                peak = max(_peak(process.pid), self._peaks.get(process.pid, ("", 0))[1])
                self._peaks[process.pid] = (role, peak)

    def _role(self, process: psutil.Process) -> str | None:
        """The role whose command line it has, or one of its parents; None while it ends, when it has none."""
        while process.pid != self._run.process.pid:  # type: ignore[union-attr]
            try:
                line = " ".join(process.cmdline())
                if not line:
                    return None
                for role, words in _WORDS.items():
                    if all(word in line for word in words):
                        return role
                parent = process.parent()
            except psutil.Error:
                return None
            if parent is None:
                return None
            process = parent
        return None


def _peak(pid: int) -> int:
    """kB, as the kernel remembers it; 0 of a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
