"""Hot fields: what a running controller can be told anew. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HotFields:
    """What a running job may change."""

    max_steps: int
    max_staleness: int
    max_concurrent_rollouts: int
    ahead: int = 0
