"""Counts of a run's finished episodes by how each ended, and the share of infrastructure faults among them.

The controller counts each episode once, when its worker tells of it or is lost with it; a try that failed and the one
that came after it are two. The counts are kept in a file for each start of the controller, which begins with those of
the newest earlier one.
"""

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from areal.files import write_atomically

_NAME = re.compile(r"episode-ends\.f(\d+)\.json")


class EpisodeEnd(StrEnum):
    """How an episode ended."""

    COMPLETE = "complete"  # a sample that is trained
    MASKED = "masked"  # a sample that its group's deadline cut off: kept, not trained
    REJECTED = "rejected"  # the workflow returned None
    EXCEPTION = "exception"  # the user's code raised
    HANG = "hang"  # the user's code passed its deadline
    INFRA = "infra"  # the platform failed: it is tried again, and never a reward


ENDS = frozenset[str](EpisodeEnd)


def infra_share(ends: Mapping[str, int]) -> float | None:
    """Which part of the finished episodes ended by an infrastructure fault; None before the first."""
    total = sum(ends.get(end, 0) for end in EpisodeEnd)
    return ends.get(EpisodeEnd.INFRA, 0) / total if total else None


def read_ends(directory: Path) -> dict[str, int]:
    """The newest counts of episodes in a directory; empty where there are none, or none that can be read."""
    return {end: count for end, count in read_counts(directory).items() if end in ENDS}


def read_counts(directory: Path) -> dict[str, int]:
    """As `read_ends`, with what else the controller counted: see `COUNTED`. The newest."""
    try:
        named = [(int(match[1]), path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    except OSError:
        return {}
    for _, path in sorted(named, reverse=True):
        try:
            found = json.loads(path.read_bytes())
            return {str(end): int(count) for end, count in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            continue  # damaged by a power cut: it is not written durably
    return {}


def write_ends(directory: Path, fence: int, ends: Mapping[str, int]) -> None:
    """Keep the counts of the controller of this fence. Raises OSError."""
    path = directory / f"episode-ends.f{fence}.json"
    write_atomically(path, f"{json.dumps(dict(ends))}\n".encode(), durable=False)


# ---- Fates of sampled tokens: what became of each token that generation servers made, counted once


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
