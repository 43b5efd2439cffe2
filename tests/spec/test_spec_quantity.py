"""Sizes in bytes, amounts of resources."""

from __future__ import annotations

import pytest
from areal.spec.quantity import amount, parse_bytes
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("1024", 1024), ("2Gi", 2 << 30), ("1.5Ki", 1536), ("1k", 1000), ("0.5M", 500_000)]
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@given(st.integers(0, 10**6), st.sampled_from(["Ki", "Mi", "Gi", "Ti"]))
def test_units_are_powers_of_1024(count, unit):
    assert parse_bytes(f"{count}{unit}") == count * 1024 ** (["Ki", "Mi", "Gi", "Ti"].index(unit) + 1)


@pytest.mark.parametrize("text", ["", "2GB", "2 Gi", "-1", "1e9", "Gi", "0.3", "1.0001Ki", "٣Gi"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [("500m", 0.5), ("2", 2), (2, 2), ("1Gi", 1 << 30), ("1.5G", 1_500_000_000), ("1e3", 1000), ("900Gi", 900 << 30)],
)
def test_an_amount_is_the_number_it_means(text, number):
    assert amount(text) == number


@pytest.mark.parametrize("text", ["", "lots", "1 Gi", "1e3Gi", "-1"])
def test_what_is_no_amount_has_no_number(text):
    assert amount(text) is None
