"""Capacity of a reward pod: programs judged at once, by its processors and by its memory.

Owns the arithmetic, and what a pod for programs has unless somebody says otherwise. The reward service finds its slots
by the same numbers, from the limits of the container that it runs in.
"""

from areal.spec.code_tiers import Language, SuiteFormat

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
