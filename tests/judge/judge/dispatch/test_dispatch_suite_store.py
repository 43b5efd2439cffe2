"""Suites by digest, within a number of bytes."""

from __future__ import annotations

import pytest
from areal.errors import DataError
from areal_judge.judge.dispatch.executor import StoredSuite, SuiteStore
from areal_judge.judge.suites import digest
from areal_judge.judge.values import StdioCase, StdioSuite


def suite(text: str) -> StoredSuite:
    return StoredSuite.of(StdioSuite((StdioCase("", text),)))


def test_a_stored_suite_is_found_by_its_digest() -> None:
    stored = suite("1")
    store = SuiteStore()
    assert store.put(stored)
    assert store.get(stored.digest) is stored
    assert stored.digest == digest(stored.suite)
    assert store.get("0" * 64) is None


def test_the_least_recently_used_suites_make_room() -> None:
    a, b, c = suite("a"), suite("b"), suite("c")
    store = SuiteStore(2 * a.size_bytes)
    store.put(a)
    store.put(b)
    store.put(a)
    store.put(c)
    assert [store.get(each.digest) is not None for each in (a, b, c)] == [True, False, True]
    assert (len(store), store.held_bytes) == (2, a.size_bytes + c.size_bytes)


def test_a_suite_larger_than_the_store_drops_nobody() -> None:
    small, large = suite("a"), suite("a" * 1000)
    store = SuiteStore(small.size_bytes)
    store.put(small)
    assert not store.put(large)
    assert store.get(small.digest) is small


def test_an_empty_suite_is_never_stored() -> None:
    with pytest.raises(DataError, match="every program would pass"):
        StoredSuite.of(StdioSuite(()))
