"""Staging: a delta comes out as the full version, by whatever way; what can't be trusted is refused by name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from areal.errors import DataError, InfraError
from areal.values.policy import PolicyId
from areal.weights.collect import collect, versions
from areal.weights.manifest import Canary
from areal.weights.publish import WeightsRef, open_staging, publish, seal_delta
from areal.weights.shards import write_delta
from areal.weights.stage import StagingArea
from areal.weights.verify import open_version
from safetensors.numpy import load_file

CANARY = Canary(token_ids=(1, 5, 2), logprobs=(0.0, -1.25, -0.5), tolerance=0.02)
FILES = {"config.json": b'{"model_type": "qwen3"}'}
NAMES = ("model.embed.weight", "model.layers.0.up.weight", "model.layers.1.up.weight", "model.norm.weight")


def weights(version: int) -> dict[str, np.ndarray]:
    """Words of a version: each changes one word in forty of the version before; the norm never changes."""
    made = {name: np.random.default_rng(7).integers(0, 2**16, (32, 20), dtype=np.uint16) for name in NAMES}
    for step in range(1, version + 1):
        random = np.random.default_rng(step)
        for name in NAMES[:-1]:
            made[name] = made[name] ^ (random.random(made[name].shape) < 0.025).astype(np.uint16)
    return made


def sources(version: int):
    return [(name, "U16", value.shape, value) for name, value in weights(version).items()]


class Volume:
    """Version 0 is full, the following are deltas of the one before."""

    def __init__(self, root: Path, last: int) -> None:
        self.root = root
        self.refs = [publish(root, PolicyId(0, 1), sources(0), CANARY, FILES, shard_bytes=3000)]
        for version in range(1, last + 1):
            self.add(version)

    def add(self, version: int) -> WeightsRef:
        policy, before = PolicyId(version, 1), self.refs[-1]
        staging = open_staging(self.root, policy)
        part = write_delta(staging, 0, weights(version - 1), sources(version))
        base = open_version(before.path, before.manifest_digest)
        self.refs.append(seal_delta(self.root, staging, policy, [part], base, CANARY, FILES))
        return self.refs[-1]

    def file(self, version: int) -> Path:
        return self.refs[version].path / "delta-00000.bin"


def take(stage: StagingArea, ref: WeightsRef) -> dict[str, np.ndarray]:
    staged = stage.prepare(ref.path, ref.manifest_digest)
    assert staged.manifest.policy_id == ref.policy_id
    assert (staged.path / "config.json").read_bytes() == FILES["config.json"]
    found: dict[str, np.ndarray] = {}
    for shard in sorted(staged.path.glob("*.safetensors")):
        found |= load_file(shard)
    return found


def same(found: dict[str, np.ndarray], version: int) -> bool:
    return found.keys() == set(NAMES) and all((found[name] == value).all() for name, value in weights(version).items())


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)


def test_each_version_in_turn_and_a_late_joiner_hold_the_same_bytes(tmp_path):
    volume = Volume(tmp_path / "volume", 5)
    follower = StagingArea(tmp_path / "follower")
    for version, ref in enumerate(volume.refs):
        assert same(take(follower, ref), version)
    assert same(take(StagingArea(tmp_path / "joiner"), volume.refs[5]), 5)
    assert len(list((tmp_path / "follower").iterdir())) == 2
    manifest = open_version(volume.refs[5].path, volume.refs[5].manifest_digest)
    assert NAMES[-1] not in manifest.deltas
    assert manifest.stored_bytes < 0.2 * manifest.total_bytes


def test_a_full_version_is_loaded_from_where_it_lies(tmp_path):
    volume = Volume(tmp_path / "volume", 0)
    ref = volume.refs[0]
    assert StagingArea(tmp_path / "stage").prepare(ref.path, ref.manifest_digest).path == ref.path


def test_a_flipped_byte_of_a_delta_is_named(tmp_path):
    volume = Volume(tmp_path / "volume", 2)
    flip(volume.file(2))
    stage = StagingArea(tmp_path / "stage")
    assert same(take(stage, volume.refs[1]), 1)
    with pytest.raises(DataError, match=r"delta of tensor 'model\..* of 2\.f1 differs"):
        take(stage, volume.refs[2])
    assert same(take(stage, volume.refs[1]), 1)


def test_a_base_that_was_damaged_here_is_made_again_from_the_volume(tmp_path):
    volume = Volume(tmp_path / "volume", 3)
    stage = StagingArea(tmp_path / "stage")
    take(stage, volume.refs[2])
    flip(next((tmp_path / "stage").glob("*/model-00001*")))
    assert same(take(stage, volume.refs[3]), 3)
    flip(next((tmp_path / "stage").glob("*/model-00002*")))
    assert same(take(stage, volume.refs[3]), 3)


def test_a_lost_or_wrong_base_is_refused_in_words_and_the_next_full_one_heals_it(tmp_path):
    volume = Volume(tmp_path / "volume", 2)
    kept = tmp_path / "kept"
    os.rename(volume.refs[0].path, kept)
    stage = StagingArea(tmp_path / "stage")
    with pytest.raises(DataError, match=r"2\.f1 is a delta, and its base 0\.f1 is lost"):
        take(stage, volume.refs[2])
    shutil.copytree(volume.refs[1].path, volume.refs[0].path)  # another manifest under the base's name
    with pytest.raises(DataError, match=r"its base 0\.f1 is lost: the manifest .* has digest"):
        take(stage, volume.refs[2])
    full = publish(volume.root, PolicyId(3, 1), sources(3), CANARY, FILES)
    assert same(take(stage, full), 3)


def test_no_room_to_stage_is_the_volumes_fault(tmp_path):
    volume = Volume(tmp_path / "volume", 1)
    (tmp_path / "stage").write_text("a file where the directory should be")
    with pytest.raises(InfraError, match=r"1\.f1 can't be staged"):
        take(StagingArea(tmp_path / "stage"), volume.refs[1])


def test_collecting_keeps_the_chain_of_what_is_kept(tmp_path):
    volume = Volume(tmp_path / "volume", 3)
    volume.refs.append(publish(volume.root, PolicyId(4, 1), sources(4), CANARY, FILES))
    volume.add(5)
    collect(volume.root, set(), PolicyId(4, 1))
    assert [policy.version for policy in versions(volume.root)] == [0, 1, 2, 3, 4, 5]
    collect(volume.root, set(), PolicyId(5, 1))
    assert [policy.version for policy in versions(volume.root)] == [4, 5]
    assert same(take(StagingArea(tmp_path / "joiner"), volume.refs[5]), 5)
