"""From what was seen of a run to how it ended."""

from __future__ import annotations

import dataclasses
import signal

import pytest
from areal_judge.sandbox.host.session import EndEvidence, verdict
from areal_judge.sandbox.values import Ending, Limits

LIMITS = Limits(wall_s=4, cpu_s=3, memory_bytes=100 << 20)
FINE = EndEvidence(
    status=0, reason="", wall_s=0.1, cpu_s=0.1, cpu_all_s=0.1, rss_bytes=1 << 20, out_of_memory=False,
    tasks_refused=False, disk_full=False, stderr=b"",
)  # fmt: skip
FAILED = 1 << 8
KILLED = int(signal.SIGKILL)


def ending(**changes: object) -> Ending:
    return verdict(dataclasses.replace(FINE, **changes), LIMITS).ending  # type: ignore[arg-type]


def test_exit_codes_and_signals_are_told_apart() -> None:
    assert verdict(FINE, LIMITS).exit_code == 0
    assert verdict(dataclasses.replace(FINE, status=7 << 8), LIMITS).exit_code == 7
    assert verdict(dataclasses.replace(FINE, status=int(signal.SIGSEGV)), LIMITS).signal == signal.SIGSEGV


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"reason": "output", "status": KILLED}, Ending.OUTPUT_LIMIT),
        ({"reason": "cancel", "status": KILLED}, Ending.CANCELLED),
        ({"reason": "wall", "status": KILLED, "wall_s": 4.01}, Ending.WALL_LIMIT),
        ({"wall_s": 4.2}, Ending.WALL_LIMIT),
        ({"status": KILLED, "out_of_memory": True}, Ending.MEMORY_LIMIT),
        ({"status": FAILED, "out_of_memory": True}, Ending.MEMORY_LIMIT),
        ({"out_of_memory": True}, Ending.EXITED),
        ({"reason": "wall", "status": KILLED, "out_of_memory": True}, Ending.MEMORY_LIMIT),
        ({"status": KILLED, "cpu_all_s": 2.9}, Ending.CPU_LIMIT),
        ({"status": KILLED, "cpu_all_s": 0.5}, Ending.SIGNALED),
        ({"cpu_s": 3.1, "cpu_all_s": 3.1}, Ending.CPU_LIMIT),
        ({"status": int(signal.SIGXCPU)}, Ending.CPU_LIMIT),
        ({"status": FAILED, "stderr": b"Traceback\nMemoryError\n"}, Ending.MEMORY_LIMIT),
        ({"status": FAILED, "stderr": b"MemoryError\nValueError: x\n"}, Ending.EXITED),
        ({"status": int(signal.SIGABRT), "stderr": b"what():  std::bad_alloc\n"}, Ending.MEMORY_LIMIT),
        ({"status": int(signal.SIGSEGV), "rss_bytes": 99 << 20}, Ending.MEMORY_LIMIT),
        ({"status": FAILED, "rss_bytes": 99 << 20}, Ending.EXITED),
        ({"stderr": b"MemoryError\n"}, Ending.EXITED),
        ({"status": int(signal.SIGXFSZ)}, Ending.DISK_LIMIT),
        ({"status": FAILED, "disk_full": True}, Ending.DISK_LIMIT),
        ({"disk_full": True}, Ending.EXITED),
        ({"status": FAILED, "stderr": b"OSError: [Errno 28] No space left on device\n"}, Ending.DISK_LIMIT),
        ({"status": FAILED, "tasks_refused": True}, Ending.PROCESS_LIMIT),
        ({"tasks_refused": True}, Ending.EXITED),
        ({"status": FAILED, "stderr": b"RuntimeError: can't start new thread\n"}, Ending.PROCESS_LIMIT),
    ],
)
def test_a_limit_is_named_when_it_is_why_the_program_ended(changes: dict[str, object], expected: Ending) -> None:
    assert ending(**changes) is expected
