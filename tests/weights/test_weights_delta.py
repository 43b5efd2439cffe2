"""Deltas: applied to their base they give exactly the new bytes; what is no delta is refused."""

from __future__ import annotations

import numpy as np
import pytest
from areal.errors import DataError
from areal.weights.delta import Encoding, apply, encode
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples


def changed(base: bytes, places: set[int], seed: int) -> bytearray:
    noise = np.random.default_rng(seed).integers(1, 256, len(base))
    new = bytearray(base)
    for place in places:
        new[place] ^= int(noise[place])
    return new


@settings(max_examples=examples(150), deadline=None)
@given(base=st.binary(max_size=600), share=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
def test_a_delta_applied_to_its_base_is_the_new_tensor(base, share, seed):
    random = np.random.default_rng(seed)
    places = {place for place in range(len(base)) if random.random() < share * share}
    new = changed(base, places, seed)
    encoded = encode(memoryview(base), memoryview(new))
    if encoded is None:
        assert new == base
        return
    target = bytearray(base)
    apply(memoryview(target), *encoded)
    assert target == new


def test_one_step_of_bfloat16_training_is_a_few_percent_of_its_bytes():
    random = np.random.default_rng(0)
    master = random.normal(0, 0.02, 1_000_000).astype(np.float32)

    def bfloat16(values):
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    steps = {rate: master + random.uniform(-rate, rate, master.size).astype(np.float32) for rate in (1e-6, 3e-6)}
    base = bfloat16(master)
    size = {}
    for rate, after in steps.items():
        encoding, payload = encode(memoryview(base).cast("B"), memoryview(bfloat16(after)).cast("B"))
        assert encoding is Encoding.SPARSE
        size[rate] = len(payload) / base.nbytes
    assert size[1e-6] <= 0.02
    assert size[3e-6] <= 0.05


@pytest.mark.parametrize("spoil", [lambda p: p[: len(p) // 2], lambda p: b"", lambda p: p[:9] + b"\xff" + p[10:]])
def test_a_damaged_delta_is_refused(spoil):
    base = bytes(4000)
    _, payload = encode(memoryview(base), memoryview(changed(base, set(range(0, 4000, 97)), 1)))
    with pytest.raises(DataError):
        apply(memoryview(bytearray(base)), Encoding.SPARSE, spoil(payload))


def test_places_outside_of_the_tensor_are_refused():
    base = bytes(4000)
    encoding, payload = encode(memoryview(base), memoryview(changed(base, {3999}, 1)))
    with pytest.raises(DataError, match="outside"):
        apply(memoryview(bytearray(100)), encoding, payload)
    with pytest.raises(ValueError, match="one length"):
        encode(memoryview(b"12"), memoryview(b"1234"))
