"""Paces the processes of a job: a token and an update take a fixed time, whatever the machine makes of them.

On PYTHONPATH of `areal run`, for `bench/whatif.py`. PACED_TOKEN_S: each decoding step of the embedded engine lasts that
long at least; PACED_UPDATE_S: each update of the trainer.
"""

import os
import sys
import time


def _paced(call, seconds):
    """`call`, which then sleeps until it has lasted so long."""

    def paced(*arguments, **named):
        until = time.monotonic() + seconds
        try:
            return call(*arguments, **named)
        finally:
            time.sleep(max(0.0, until - time.monotonic()))

    return paced


if "PACED_TOKEN_S" in os.environ and "areal.engine.main" in sys.orig_argv:
    from areal.engine.scheduler import DecodeScheduler

    DecodeScheduler._step = _paced(DecodeScheduler._step, float(os.environ["PACED_TOKEN_S"]))
if "PACED_UPDATE_S" in os.environ and "areal_trainer.main" in sys.orig_argv and "RANK" in os.environ:
    from areal_trainer.actor import Actor

    Actor._update = _paced(Actor._update, float(os.environ["PACED_UPDATE_S"]))
