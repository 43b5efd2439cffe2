"""Faults that a process of a run puts into itself, for as long as a file next to STALL_FLAG is there.

On SIGUSR2 the main thread of any Python process blocks (STALL_FLAG itself); the embedded engine refuses every version
of the weights (`STALL_FLAG.weights`).
"""

import os
import signal
import sys
import time


def _block(*_):
    while os.path.exists(os.environ["STALL_FLAG"]):
        time.sleep(0.05)


def _refusing(load):
    def loaded(*arguments, **named):
        if os.path.exists(os.environ["STALL_FLAG"] + ".weights"):
            raise OSError("these weights are refused")
        return load(*arguments, **named)

    return loaded


if "STALL_FLAG" in os.environ:
    signal.signal(signal.SIGUSR2, _block)
    if "areal.engine.main" in sys.orig_argv:
        from areal.engine import embedded

        embedded.read_tensors = _refusing(embedded.read_tensors)
