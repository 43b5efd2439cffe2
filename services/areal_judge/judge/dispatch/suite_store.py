"""Suites that were uploaded once, so that requests carry a digest instead of megabytes of tests.

Pure. Keeps the most recently used ones within a number of bytes; a request holds its suite itself, so that dropping
one from here disturbs no run.
"""

import hashlib
from dataclasses import dataclass

from cachetools import LRUCache

from areal_judge.judge.suites import to_json, validate
from areal_judge.judge.values import Suite

CAPACITY_BYTES = 256 << 20


@dataclass(frozen=True)
class StoredSuite:
    """A suite that was found fit to judge, with its digest and the size of its canonical form."""

    suite: Suite
    digest: str
    size_bytes: int

    @classmethod
    def of(cls, suite: Suite, *, read: bool = False) -> "StoredSuite":
        """Raises DataError when no program should be judged by it. Takes milliseconds for megabytes of tests.

        `read`: it comes from its text, whose reading looks for that.
        """
        if not read:
            validate(suite)
        text = to_json(suite).encode("ascii")
        return cls(suite, hashlib.sha256(text).hexdigest(), len(text))


class SuiteStore:
    """LRU cache of suites by digest, bounded by bytes."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._suites: LRUCache[str, StoredSuite] = LRUCache(capacity_bytes, getsizeof=lambda each: each.size_bytes)

    def __len__(self) -> int:
        return len(self._suites)

    @property
    def held_bytes(self) -> int:
        """Of all suites."""
        return int(self._suites.currsize)

    def put(self, stored: StoredSuite) -> bool:
        """Keeps a suite. False: it is larger than the whole store, and not kept."""
        if stored.size_bytes > self._suites.maxsize:
            return False
        self._suites[stored.digest] = stored
        return True

    def get(self, digest: str) -> StoredSuite | None:
        """The suite, or None when it was never here or has been dropped."""
        return self._suites.get(digest)
