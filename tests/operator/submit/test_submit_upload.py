"""Sending files: what arrives is what was digested, nothing is sent twice, and what breaks off leaves no half file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from areal.errors import DataError, InfraError
from areal_operator.submit import send
from areal_operator.submit.inputs import Tree, digest_all
from submit_parts import receiving, write_job


@pytest.fixture
def trees(tmp_path: Path) -> list[Tree]:
    folder = tmp_path / "here"
    folder.mkdir()
    write_job(folder)
    return digest_all({"spec.model.path": folder / "model", "spec.dataset.train.jsonl": folder / "train.jsonl"}, "in")


def upload(trees: list[Tree], root: Path) -> int:
    """Files that were sent."""
    counted: list[int] = []
    with receiving(root) as channel:
        missing = send.plan(trees, channel)
        send.send(missing, channel, counted.append)
    assert sum(counted) == sum(file.size for file in missing.values())
    return len(missing)


def below(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_everything_arrives_under_its_name_and_hidden_files_stay_here(trees, tmp_path):
    root = tmp_path / "volume"
    assert upload(trees, root) == 5
    model, train = trees[0].directory, trees[1].directory
    here = tmp_path / "here"
    names = ("config.json", "model.safetensors", "tokenizer.json", "shards/one.safetensors")
    assert below(root) == {
        **{f"{model}/{name}": (here / "model" / name).read_bytes() for name in names},
        f"{train}/train.jsonl": (here / "train.jsonl").read_bytes(),
    }


def test_what_is_there_is_not_sent_again_and_what_was_damaged_is(trees, tmp_path):
    root = tmp_path / "volume"
    upload(trees, root)
    assert upload(trees, root) == 0
    damaged = root / trees[0].directory / "shards" / "one.safetensors"
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    assert upload(trees, root) == 1
    assert damaged.read_bytes() == bytes(range(256)) * 4096


def test_a_file_that_changes_meanwhile_is_refused_and_never_stands_under_its_name(trees, tmp_path):
    source = tmp_path / "here" / "train.jsonl"
    size = source.stat().st_size
    source.write_bytes(b"y" * size)
    with pytest.raises(DataError, match=r"train\.jsonl did not arrive as digested"):
        upload(trees, tmp_path / "volume")
    assert not (tmp_path / "volume" / trees[1].directory / "train.jsonl").exists()
    assert list((tmp_path / "volume").rglob(".areal-part*")) == []


def test_a_file_that_became_shorter_is_named(trees, tmp_path):
    source = tmp_path / "here" / "train.jsonl"
    source.write_text("short")
    with pytest.raises(DataError, match=r"train\.jsonl changed or vanished while it was sent"):
        upload(trees, tmp_path / "volume")


def test_what_arrived_before_the_connection_broke_is_kept(trees, tmp_path):
    root = tmp_path / "volume"
    with receiving(root) as channel:
        missing = send.plan(trees, channel)
        send.send(dict([next(iter(missing.items()))]), channel, lambda count: None)
        with pytest.raises(InfraError):
            send.send(missing, channel, lambda count: None)  # the receiver has ended
    assert upload(trees, root) == 4


def test_a_place_outside_of_the_directory_is_refused_by_the_pod(trees, tmp_path):
    root = tmp_path / "volume"
    for path in ("../escape", "/etc/passwd", "a//b", "a/./b"):
        with receiving(root) as channel:
            manifest = json.dumps([{"path": path, "size": 1, "sha256": "0"}]).encode()
            channel.write(len(manifest).to_bytes(8, "big") + manifest)
            assert "outside of the directory" in json.loads(channel.line(60))["error"]


def test_a_volume_that_can_t_be_written_is_said(trees, tmp_path):
    in_the_way = tmp_path / "volume"
    in_the_way.write_text("a file where the volume should be")
    with receiving(in_the_way) as channel:
        missing = send.plan(trees, channel)
        with pytest.raises(InfraError, match=r"can't keep the files: .*volume"):
            send.send(missing, channel, lambda count: None)


def test_an_image_without_python_is_named(trees, tmp_path):
    class Says:
        def write(self, data: bytes) -> None: ...

        def line(self, timeout_s: float) -> bytes:
            return b"sh: python3: not found"

    with pytest.raises(InfraError, match=r"the pod answered 'sh: python3: not found'"):
        send.plan(trees, Says())


def test_links_are_followed_and_a_loop_ends(tmp_path):
    folder = tmp_path / "model"
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / "a1").write_text("weights")
    os.symlink(folder / "blobs" / "a1", folder / "model.safetensors")
    os.symlink(folder, folder / "blobs" / "up")
    tree = digest_all({"spec.model.path": folder}, "in")[0]
    assert [file.path for file in tree.files] == ["model.safetensors", "blobs/a1"]
    assert upload([tree], tmp_path / "volume") == 2
