"""Specification of a box, as its service is asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from areal_judge.sandbox.values import Limits

BOX_LIMITS = Limits(
    memory_bytes=512 << 20, disk_bytes=128 << 20, inodes=16384, processes=64, open_files=256, stack_bytes=16 << 20
)
"""Of a box unless its maker says otherwise. Wall and processor time are its lease's matter."""


@dataclass(frozen=True)
class BoxRequest:
    """What a box is to be. Two requests of one id are the same when they are equal, leases and holders apart."""

    id: str
    limits: Limits = BOX_LIMITS
    files: Mapping[str, bytes] = field(default_factory=dict)
