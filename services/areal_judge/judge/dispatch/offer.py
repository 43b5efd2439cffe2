"""Capabilities of a service: tier, languages and limits, published as they are and checked before anything waits."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from areal_judge.sandbox.values import Powers, Tier


@dataclass(frozen=True)
class LanguageOffer:
    """A language, and what stands against judging it on this machine."""

    language: str
    version: str = ""
    digest: str = ""
    refused: str = ""


@dataclass(frozen=True)
class Offer:
    """Powers of the sandbox, languages of the machine."""

    powers: Powers
    runtimes: tuple[LanguageOffer, ...]
    min_tier: Tier = Tier.T2
    judge_version: str = "2"  # of everything else that a judgement depends on: remembered ones are void when it changes

    @property
    def tier(self) -> Tier:
        return self.powers.tier

    @cached_property
    def languages(self) -> frozenset[str]:
        """What can be judged here."""
        return frozenset(runtime.language for runtime in self.runtimes if not runtime.refused)

    @cached_property
    def runtime_digest(self) -> str:
        """Of everything that runs programs here."""
        parts = [self.judge_version, *sorted(f"{each.language} {each.version} {each.digest}" for each in self.runtimes)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def why_not(self, language: str) -> str:
        """Why a language can't be judged here, and what can."""
        offered = ", ".join(sorted(self.languages)) or "nothing"
        for runtime in self.runtimes:
            if runtime.language == language and runtime.refused:
                return f"{language} can't run here: {runtime.refused} (this service runs {offered})"
        return f"this service can't run {language[:40]!r}; it runs {offered}"
