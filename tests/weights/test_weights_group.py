"""Buckets of a broadcast: the same on both sides, aligned, bounded."""

from __future__ import annotations

import pytest
from areal.errors import DataError
from areal.weights.group import buckets
from areal.weights.manifest import TensorEntry
from areal.weights.safetensors_format import DTYPE_BYTES
from hypothesis import given
from hypothesis import strategies as st


def entry(dtype: str, words: int) -> TensorEntry:
    return TensorEntry(
        shard="model.safetensors", offset=0, length=words * DTYPE_BYTES[dtype], dtype=dtype, shape=(words,), xxh3="0"
    )


tensors = st.dictionaries(
    st.text("abc.", min_size=1, max_size=6),
    st.builds(entry, st.sampled_from(["F32", "BF16", "U8"]), st.integers(0, 40)),
    min_size=1,
)


@given(tensors, st.integers(1, 200))
def test_every_tensor_is_in_one_bucket_aligned_and_within_the_bound(entries, limit):
    made = buckets(entries, limit)
    assert sorted(piece.name for bucket in made for piece in bucket.pieces) == sorted(entries)
    for bucket in made:
        assert bucket.length <= limit or len(bucket.pieces) == 1
        start = 0
        for piece in bucket.pieces:
            assert start % DTYPE_BYTES[entries[piece.name].dtype] == 0
            start += piece.length
        assert start == bucket.length


@given(tensors, st.integers(1, 200))
def test_the_order_does_not_hang_on_the_manifest_s(entries, limit):
    assert buckets(entries, limit) == buckets(dict(reversed(list(entries.items()))), limit)


def test_a_kind_that_no_engine_takes_is_named():
    with pytest.raises(DataError, match="'w' has dtype F8_E5M2"):
        buckets({"w": entry("F8_E5M2", 4)}, 100)
