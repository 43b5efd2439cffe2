"""Suites that were uploaded once, so that requests carry a digest instead of megabytes of tests.

Pure. Keeps the most recently used ones within a number of bytes; a request holds its suite itself, so that dropping
one from here disturbs no run.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from areal.reward.judge.suites import to_json, validate
from areal.reward.judge.values import Suite

CAPACITY_BYTES = 256 << 20


@dataclass(frozen=True)
class StoredSuite:
    """A suite that was found fit to judge, with its digest and the size of its canonical form."""

    suite: Suite
    digest: str
    size_bytes: int

    @classmethod
    def of(cls, suite: Suite, *, read: bool = False) -> StoredSuite:
        """Raises DataError when no program should be judged by it. Takes milliseconds for megabytes of tests.

        `read`: it comes from its text, whose reading looks for that.
        """
        if not read:
            validate(suite)
        text = to_json(suite).encode("ascii")
        return cls(suite, hashlib.sha256(text).hexdigest(), len(text))


class SuiteStore:
    """Suites by digest."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._capacity_bytes = capacity_bytes
        self._suites: OrderedDict[str, StoredSuite] = OrderedDict()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._suites)

    def put(self, stored: StoredSuite) -> bool:
        """Keeps a suite. False: it is larger than the whole store, and not kept."""
        if stored.size_bytes > self._capacity_bytes:
            return False
        self._drop(stored.digest)
        self._suites[stored.digest] = stored
        self.held_bytes += stored.size_bytes
        while self.held_bytes > self._capacity_bytes:
            self._drop(next(iter(self._suites)))
        return True

    def get(self, digest: str) -> StoredSuite | None:
        """The suite, or None when it was never here or has been dropped."""
        stored = self._suites.get(digest)
        if stored is not None:
            self._suites.move_to_end(digest)
        return stored

    def _drop(self, digest: str) -> None:
        stored = self._suites.pop(digest, None)
        if stored is not None:
            self.held_bytes -= stored.size_bytes
