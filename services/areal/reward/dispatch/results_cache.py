"""Judgements that asking again would not change, by what they depend on.

Pure. Remembers a judgement only when its status and the statuses of all its cases are deterministic: a score in which
a time limit, a memory limit or a fault of the sandbox had a part may come out otherwise next time.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

from areal.reward.dispatch.values import Overrides
from areal.reward.judge.values import DETERMINISTIC, Judgement, Options, Status, Submission, Timing
from areal.reward.sandbox.values import Tier

CAPACITY = 50_000  # judgements: a few kB each
_KEPT_CASES = DETERMINISTIC | {Status.SKIPPED}


def key_of(
    runtime_digest: str,
    tier: Tier,
    submission: Submission,
    suite_digest: str,
    options: Options,
    overrides: Overrides,
) -> str:
    """The digest of everything that a judgement depends on. Of the source, only line ends are made equal."""
    source = submission.source.replace("\r\n", "\n").replace("\r", "\n")
    parts = (
        runtime_digest, int(tier), submission.language, source, suite_digest,
        options.scoring.value, options.run_all, options.reveal, int(options.min_integrity), options.total_s,
        sorted(overrides.limits.items()),
        None if overrides.checker is None else astuple(overrides.checker),
    )  # fmt: skip
    return _digest(parts)


def lasting(judgement: Judgement) -> bool:
    """Whether the same question will have the same answer."""
    statuses = {case.status for case in judgement.cases} | ({judgement.compile.status} if judgement.compile else set())
    return judgement.status in DETERMINISTIC and judgement.score is not None and statuses <= _KEPT_CASES


class ResultsCache:
    """The most recently used judgements."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._known: OrderedDict[str, Judgement] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Judgement | None:
        """The judgement, marked as remembered and without the times of its run."""
        found = self._known.get(key)
        if found is None:
            return None
        self._known.move_to_end(key)
        return replace(found, cached=True, timing=Timing())

    def put(self, key: str, judgement: Judgement) -> bool:
        """Remembers it if it lasts; whether it does."""
        if not lasting(judgement):
            return False
        self._known[key] = judgement
        self._known.move_to_end(key)
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)
        return True


def _digest(parts: Sequence[Any]) -> str:
    """Parts can't run into each other: each has its length in front."""
    digest = hashlib.sha256()
    for part in parts:
        text = repr(part).encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little"))
        digest.update(text)
    return digest.hexdigest()
