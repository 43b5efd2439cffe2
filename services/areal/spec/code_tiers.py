"""Tiers and capacity of programs: what tier one needs, and how many a reward pod judges at once.

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


# ---- Capacity of a reward pod: programs judged at once, by its processors and by its memory
# Owns the arithmetic, and what a pod for programs has unless somebody says otherwise. The reward service finds its
# slots by the same numbers, from the limits of the container that it runs in.


POD_REQUEST, POD_LIMIT = "512Mi", "4Gi"
"""Memory of a reward pod whose verifier is code: room for six programs of 512 MB, or for three that are compiled."""
RUN_BYTES = 512 << 20  # What a program may take, unless its row says otherwise
COMPILE_BYTES = 1 << 30  # What its compiler may take
MEMORY_SHARE = 0.8  # Of the pod's memory, for programs; the rest is the service

_COMPILED: frozenset[Language] = frozenset({"c", "cpp", "java", "go", "rust"})
_SPLIT: frozenset[SuiteFormat] = frozenset({"humaneval", "mbpp"})  # their tests have a cell beside the program's


def bytes_of_one(language: Language, suite_format: SuiteFormat) -> int:
    """Memory that judging one program holds, unless its row says otherwise."""
    cells = 2 if suite_format in _SPLIT else 1
    return max(cells * RUN_BYTES, COMPILE_BYTES if language in _COMPILED else 0)


def slots_of_cores(cores: int) -> int:
    """Judging is bound by processors; a few more slots fill what waits for pipes."""
    return max(2, cores + cores // 4)


def slots_of_memory(pod_bytes: int, one_bytes: int) -> int:
    """Programs whose limits fit together; one alone may have all of the pod."""
    return max(1, int(pod_bytes * MEMORY_SHARE) // one_bytes)
