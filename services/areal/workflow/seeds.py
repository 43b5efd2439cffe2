"""Seeds of samples: what a sample draws depends on the job's seed and on its own name, on nothing else."""

from __future__ import annotations

import struct

import xxhash

_POSITIVE = (1 << 63) - 1  # engines keep seeds in signed 64-bit tensors


def sample_seed(job_seed: int, group: int, index: int, turn: int) -> int:
    """The seed of generation `turn` (0-based, in order of calls) of sample (group, index); 63 bits."""
    packed = struct.pack("<4q", job_seed, group, index, turn)
    return int(xxhash.xxh3_64_intdigest(packed)) & _POSITIVE
