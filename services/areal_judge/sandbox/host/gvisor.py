"""The probe for gVisor: whether a kernel of its own answers system calls."""

from __future__ import annotations

import ctypes
import errno

from areal_judge.sandbox.host import acts
from areal_judge.sandbox.kernel import calls as kernel

_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_SYS_SYSLOG = {"x86_64": 103, "aarch64": 116}
_SYSLOG_READ_ALL = 3
_GVISOR_FIRST_LINE = b"Starting gVisor..."


def answers(outside: acts.Outside) -> str:
    """Whether gVisor's kernel answers instead of Linux.

    Two behaviours that no Linux has, both without privilege, and both have to be there. Its system log begins with a
    line of its own, and the first is the oldest: Linux's begins otherwise, and only root can write to it. And it
    answers perf_event_open with ENODEV before it looks at the arguments, where Linux says EFAULT for a null pointer. A
    container's filter that hides one of them makes this say no: too low a tier, never too high. Version strings are
    no evidence: gVisor lets its operator choose them.
    """
    buffer = ctypes.create_string_buffer(4096)
    length = acts.raw(_SYS_SYSLOG[kernel.MACHINE], _SYSLOG_READ_ALL, ctypes.addressof(buffer), len(buffer))
    first = buffer.raw[:length].partition(b"\n")[0]
    if not first.endswith(_GVISOR_FIRST_LINE):
        raise acts.NotHeld("the system log is Linux's")
    acts.refused(
        lambda: acts.raw(_SYS_PERF_EVENT_OPEN[kernel.MACHINE], 0, 0, -1, -1, 0), errno.ENODEV, what="perf_event_open"
    )
    return "gVisor answers: its own system log, and no perf events"
