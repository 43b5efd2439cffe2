"""Samples for the ledger's tests: small, and telling which attempt made them."""

from __future__ import annotations

from areal.ledger.values import SampleMeta


def payload(group: int, index: int, attempt: int = 0) -> bytes:
    """Bytes that differ for every sample and attempt."""
    return b"g%d.i%d.a%d" % (group, index, attempt)


def meta(attempt: int = 0, *, oldest: int = 0, staleness: int = 2, reward: float = 1.0) -> SampleMeta:
    """What stands beside a payload."""
    return SampleMeta(attempt, reward, oldest, oldest, staleness, 8, False, 0xFEDCBA9876543210 + attempt, "worker-0")
