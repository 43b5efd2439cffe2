"""Outcome of an agent: its reward and a note, and the episode that they make of what was sampled."""

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

from areal.errors import DataError
from areal.workflow.branches import SessionEnding, branches_of
from areal.workflow.episode import Episode

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """The reward, None where it was posted or forgotten, and a note that is recorded beside the episode."""

    reward: float | None
    note: str = ""


def episode_of(finished: SessionEnding, said: Any) -> Episode:
    """One sequence for each branch, all with the reward that was posted, or else the one that was returned.

    `said` is a number, an Outcome or None. Raises DataError without a reward or without a call.
    """
    outcome = said if isinstance(said, Outcome) else Outcome(said)
    reward = outcome.reward if finished.reward is None else finished.reward
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        printed = f" and printed {outcome.note!r}" if isinstance(said, Outcome) else ""
        raise DataError(
            f"the agent returned {outcome.reward!r}{printed}",
            fix="return the episode's reward as a finite number; a command prints it as its last word; or post it to "
            "rl/set_reward",
        )
    branches = branches_of(finished.nodes, float(reward))
    if branches.orphans:
        answers = len(finished.nodes)
        log.info("%d of an agent's %d answers were asked for again and are not trained", branches.orphans, answers)
    return replace(branches.episode, note=outcome.note)
