"""Reading: whatever changed on the way is found, and named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from areal.errors import DataError, InfraError
from areal.values.policy import PolicyId
from areal.weights.manifest import Canary, Manifest
from areal.weights.publish import publish
from areal.weights.verify import open_version, read_verified, verify_tensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

TENSORS = [(f"layer.{k}", "F32", (3, 4), np.full((3, 4), k, np.float32)) for k in range(4)]


@pytest.fixture
def ref(tmp_path):
    return publish(tmp_path, PolicyId(5, 2), TENSORS, None, {"config.json": b"{}"}, shard_bytes=100)


def manifest_of(ref):
    return open_version(ref.path, ref.manifest_digest)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bit_is_found(ref, data):
    manifest = manifest_of(ref)
    name, entry = data.draw(st.sampled_from(sorted(manifest.tensors.items())))
    path = ref.path / entry.shard
    whole = path.read_bytes()
    position = entry.offset + data.draw(st.integers(0, entry.length - 1))
    flipped = bytearray(whole)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        path.write_bytes(flipped)
        with pytest.raises(DataError, match=f"'{name}'"):
            verify_tensors(ref.path, manifest)
    finally:
        path.write_bytes(whole)
    verify_tensors(ref.path, manifest)


def test_a_header_that_swaps_two_tensors_is_found(ref):
    manifest = manifest_of(ref)
    path = ref.path / manifest.tensors["layer.0"].shard
    raw = path.read_bytes()
    swapped = raw.replace(b"layer.0", b"layer.x").replace(b"layer.1", b"layer.0").replace(b"layer.x", b"layer.1")
    assert swapped != raw
    path.write_bytes(swapped)
    with pytest.raises(DataError, match=r"'layer\.0'.*described differently"):
        verify_tensors(ref.path, manifest)


@pytest.mark.parametrize("length", [0, 4, 60, -1])
def test_a_cut_off_shard_is_found(ref, length):
    manifest = manifest_of(ref)
    path = ref.path / manifest.tensors["layer.3"].shard
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match=r"'layer\.[23]'"):
        verify_tensors(ref.path, manifest)


def test_a_missing_shard_is_found(ref):
    manifest = manifest_of(ref)
    (ref.path / manifest.tensors["layer.0"].shard).unlink()
    with pytest.raises(DataError, match=r"'layer\.0'.*missing"):
        verify_tensors(ref.path, manifest)


def test_a_changed_config_is_found(ref):
    manifest = manifest_of(ref)
    (ref.path / "config.json").write_bytes(b'{"vocab_size": 3}')
    with pytest.raises(DataError, match=r"config\.json"):
        verify_tensors(ref.path, manifest)


def test_only_the_announced_digest_opens_a_version(ref):
    raw = (ref.path / "manifest.json").read_bytes()
    altered = json.loads(raw) | {"step": 6}
    (ref.path / "manifest.json").write_bytes(json.dumps(altered).encode())
    with pytest.raises(DataError, match="digest"):
        open_version(ref.path, ref.manifest_digest)
    (ref.path / "manifest.json").write_bytes(raw)
    with pytest.raises(DataError, match="digest"):
        open_version(ref.path, "")
    assert manifest_of(ref).policy_id == PolicyId(5, 2)


def test_a_version_that_was_collected_may_be_asked_for_again(tmp_path):
    with pytest.raises(InfraError, match="can't be read"):
        open_version(tmp_path / "v00000001.f1", "0" * 64)


def test_views_outlive_the_reader(ref):
    kept = {name: np.frombuffer(view, np.float32) for name, _, view in read_verified(ref.path, manifest_of(ref))}
    assert {name: float(values.sum()) for name, values in kept.items()} == {f"layer.{k}": 12.0 * k for k in range(4)}


@given(
    logprobs=st.lists(st.floats(-100, 0), min_size=1, max_size=8),
    tolerance=st.floats(1e-6, 1),
    created=st.floats(0, 4e9),
)
def test_a_manifest_read_back_has_the_same_digest(logprobs, tolerance, created):
    canary = Canary(token_ids=tuple(range(len(logprobs))), logprobs=tuple(logprobs), tolerance=tolerance)
    manifest = Manifest(policy="1.f1", step=1, created=created, tensors={}, files={}, canary=canary)
    again = Manifest.from_bytes(manifest.to_bytes())
    assert again == manifest
    assert again.digest() == manifest.digest()


@pytest.mark.parametrize("logprobs", [(0.0,), (0.0, float("nan"))])
def test_a_canary_has_one_finite_logprob_a_token(logprobs):
    with pytest.raises(ValueError, match=r"log-probability|finite"):
        Canary(token_ids=(1, 2), logprobs=logprobs, tolerance=0.1)
