"""Staging: a delta comes out as the full version, by whatever way; what can't be trusted is refused by name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from areal.errors import DataError, InfraError
from areal.values.policy import PolicyId
from areal.weights.publish import collect, publish, versions
from areal.weights.stage import StagingArea
from areal.weights.verify import open_version
from support.published import CANARY, FILES, NAMES, Volume, same, sources, take


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
