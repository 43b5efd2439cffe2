"""The sandboxes that one machine can offer: by tier, and by who started the service."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from areal_judge.sandbox.values import Tier
from sandbox.attacks.claims import ATTACKS
from sandbox.attacks.table import Attack
from support.as_user import UID


@dataclass(frozen=True)
class Setting:
    """One sandbox."""

    name: str
    tier: Tier
    uid: int  # of the service

    def can_try(self, attack: Attack) -> bool:
        """Whether the attack's tools are here, and the tier starts programs at all."""
        return not attack.tool or (self.tier is Tier.T3 and shutil.which(attack.tool) is not None)

    def of(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self.can_try(ATTACKS[name])]


SETTINGS = (
    Setting("T3-by-root", Tier.T3, 0),
    Setting("T3-by-a-user", Tier.T3, UID),
    Setting("T2-by-root", Tier.T2, 0),
    Setting("T2-by-a-user", Tier.T2, UID),
)
