"""Tier requirements of a program: by its language, and by what else it must be able to do.

The one place below the reward service that knows it, so that a job is refused before anything starts. A tier that a job
names is the least that it accepts; T0 is accepted for whatever the machine then can.
"""

from collections.abc import Mapping
from typing import Literal

TierName = Literal["T0", "T2", "T3", "T4"]
Language = Literal["python", "c", "cpp", "javascript", "bash", "java", "go", "rust"]
SuiteFormat = Literal[
    "auto", "native", "humaneval", "mbpp", "evalplus", "apps", "taco", "codecontests", "livecodebench", "sandboxfusion",
    "verifiable",
]  # fmt: skip
Need = Literal["fork", "scratch", "compiler"]

PYTHON = "T2"  # Pure Python needs no more than the weakest sandbox
PROCESSES = "T3"  # Whatever is compiled, forks or writes: the filters of T2 allow none of it

LEAST_TIER_OF_LANGUAGE: Mapping[str, str] = {
    "python": PYTHON, "c": PROCESSES, "cpp": PROCESSES, "javascript": PROCESSES, "bash": PROCESSES, "java": PROCESSES,
    "go": PROCESSES, "rust": PROCESSES,
}  # fmt: skip
LEAST_TIER_OF_NEED: Mapping[str, str] = {"fork": PROCESSES, "scratch": PROCESSES, "compiler": PROCESSES}


def level(tier: str) -> int:
    """T0 → 0 … T4 → 4."""
    return int(tier[1:])


def demanding(language: str, needs: tuple[str, ...]) -> dict[str, str]:
    """What of a job asks for more than pure Python does, and the least tier for it."""
    asked = {f"language {language}": LEAST_TIER_OF_LANGUAGE[language]}
    asked |= {f"needs {need}": LEAST_TIER_OF_NEED[need] for need in needs}
    return {what: tier for what, tier in asked.items() if level(tier) > level(PYTHON)}
