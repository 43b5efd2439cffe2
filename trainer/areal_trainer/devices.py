"""GPUs that the job promised a trainer's ranks: looked for before anything is loaded.

A rank that sees none trains a 7B model on the CPU without a word; here it ends with exit code 64 and the versions of
driver and CUDA.
"""

from __future__ import annotations

import os

import torch
from areal import nvidia


def require_gpus(gpus: int, machine: nvidia.Machine | None = None) -> None:
    """Raise ConfigError unless this machine shows a GPU to each rank on it.

    Args:
        gpus: `trainer.gpus` of the job, a node's; 0 trains on CPUs and asks for nothing.
    """
    if gpus == 0:
        return
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", gpus))
    where = nvidia.Machine() if machine is None else machine
    nvidia.require(ranks_here, "the trainer", where)
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen < ranks_here:
        raise nvidia.missing(
            ranks_here, seen, "the trainer", where.driver(), torch.version.cuda or "none (a CPU build)"
        )
