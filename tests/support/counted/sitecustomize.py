"""Lets a test count a role's live objects: on SIGUSR2 they go, by type, to a file named after the process.

Python loads it at start when its folder is on PYTHONPATH; nothing of the product knows of it. Only roles listen.
"""

import gc
import json
import os
import signal
import sys
from collections import Counter

_ROLES = ("areal.processes.role", "areal_trainer.main", "areal.engine.main")


def _count(*_: object) -> None:
    gc.collect()
    kinds = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
    path = os.path.join(os.environ["AREAL_COUNTS"], f"{os.getpid()}.json")
    with open(f"{path}.part", "w") as file:
        json.dump(kinds, file)
    os.replace(f"{path}.part", path)


_line = " ".join(sys.orig_argv)
if "AREAL_COUNTS" in os.environ and "torch.distributed.run" not in _line and any(role in _line for role in _ROLES):
    signal.signal(signal.SIGUSR2, _count)
