"""Fates of sampled tokens: what became of each token that generation servers made, counted once.

The controller counts them (`areal.rollout.controller.token_book`) and keeps the counts beside those of ended episodes.
"""

from collections.abc import Mapping
from enum import StrEnum

GENERATED = "generated"  # all of them
IN_FLIGHT = "in_flight"  # of these, those without a fate
REPREFILLED = "reprefilled"  # tokens computed again, prompts included: work of the engine, no sampled tokens


class TokenFate(StrEnum):
    """What became of a token."""

    SERVED = "served"  # in a sample of a group that was chosen to be trained
    MIGRATED = "migrated"  # likewise, and made before its answer went on elsewhere
    EVALUATED = "evaluated"  # of an evaluation's answer
    STALE = "stale"  # dropped for its age
    ABORTED = "aborted"  # its episode or group was ended by the job's rules or the user's code
    LOST = "lost"  # nobody has it: its process died, its stream broke, its try failed


WASTED = (TokenFate.LOST, TokenFate.STALE, TokenFate.ABORTED)
COUNTED = (GENERATED, *TokenFate, IN_FLIGHT, REPREFILLED)


def wasted_share(counts: Mapping[str, int]) -> float | None:
    """Which part of the generated tokens serves nothing; None before the first."""
    generated = counts.get(GENERATED, 0)
    return sum(counts.get(fate, 0) for fate in WASTED) / generated if generated else None


def wasted_text(counts: Mapping[str, int]) -> str:
    """The share and its parts in words, a dash before the first token."""
    share, parts = wasted_share(counts), ", ".join(f"{fate} {counts.get(fate, 0):,}" for fate in WASTED)
    return "—" if share is None else f"{share:.2%}: {parts}"
