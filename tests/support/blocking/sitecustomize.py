"""On SIGUSR2 the main thread of any Python process blocks, for as long as the file that STALL_FLAG names is there."""

import os
import signal
import time


def _block(*_):
    while os.path.exists(os.environ["STALL_FLAG"]):
        time.sleep(0.05)


if "STALL_FLAG" in os.environ:
    signal.signal(signal.SIGUSR2, _block)
