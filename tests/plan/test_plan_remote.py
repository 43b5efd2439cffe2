"""Models and rows in an object store: which objects an address means, and that a source is whole or not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from areal.errors import ConfigError, DataError, InfraError
from areal.object_store import ObjectStore
from areal.plan import remote
from obstore.store import LocalStore

MODEL = {
    "m/tiny/config.json": b"{}", "m/tiny/model.safetensors": b"w" * 100, "m/tiny/tokenizer.json": b"{}",
    "m/tiny/optimizer.pt": b"o" * 50, "m/tiny/original/params.json": b"{}", "m/tiny-2/config.json": b"{}",
}  # fmt: skip
ROWS = {"rows/a.jsonl": b"1\n", "rows/b.jsonl": b"2\n", "rows/notes.txt": b"x", "rows/old/c.jsonl": b"3\n"}


class Bucket:
    """A bucket in a directory, as `ObjectStore.connect` finds it; `reads` lists the objects that were read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reads: list[str] = []
        self.fails_on: str = ""
        for key, data in {**MODEL, **ROWS}.items():
            self.write(key, data)

    def write(self, key: str, data: bytes) -> None:
        file = self.root / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def connect(self, url: str, credentials: Path | None = None) -> ObjectStore:
        bucket = self

        class Below(ObjectStore):
            def blocks(self, key: str, start: int, size: int) -> Iterator[bytes]:
                bucket.reads.append(key)
                if bucket.fails_on and key.endswith(bucket.fails_on):
                    raise InfraError("the store is gone")
                yield from super().blocks(key, start, size)

        return Below(url, LocalStore(self.root / url.removeprefix("s3://bucket").strip("/")))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bucket:
    made = Bucket(tmp_path / "bucket")
    monkeypatch.setattr(remote.ObjectStore, "connect", made.connect)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


def below(place: Path) -> set[str]:
    return {str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()}


def quiet(words: str) -> None:
    """Nobody is told."""


def test_of_a_model_what_is_read_is_fetched_and_nothing_beside_it(bucket: Bucket) -> None:
    said: list[str] = []
    place = remote.fetch("s3://bucket/m/tiny/", said.append)
    assert place.name == "tiny"
    assert below(place) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert said == ["downloading s3://bucket/m/tiny/: 3 files, 104 B"]


@pytest.mark.parametrize(
    ("address", "files"),
    [
        ("rows/a.jsonl", {"a.jsonl"}),
        ("rows/*.jsonl", {"a.jsonl", "b.jsonl"}),
        ("rows", {"a.jsonl", "b.jsonl", "notes.txt", "old/c.jsonl"}),
    ],
)
def test_rows_are_one_object_a_folder_or_a_pattern_of_one_folder(
    bucket: Bucket, tmp_path: Path, address: str, files: set[str]
) -> None:
    uri = f"s3://bucket/{address}"
    assert remote.cached(uri) is None
    place = remote.fetch(uri, quiet)
    found = below(place) if place.is_dir() else below(place.parent)
    assert found - {"a.jsonl.json"} == files
    assert remote.cached(uri) == place
    target = tmp_path / "run" / "fetched" / "dataset.train" / place.name
    remote.download(uri, target, None)
    assert (below(target) if target.is_dir() else below(target.parent)) - {"a.jsonl.json"} == files
    assert not list(target.parent.parent.rglob(".*")), "nothing is left of the download"


def test_what_changed_in_the_store_is_fetched_anew_and_what_an_earlier_run_reads_stays(bucket: Bucket) -> None:
    uri = "s3://bucket/rows/a.jsonl"
    first = remote.fetch(uri, quiet)
    bucket.reads.clear()
    assert remote.fetch(uri, quiet) == first
    assert bucket.reads == []
    bucket.write("rows/a.jsonl", b"changed\n")
    second = remote.fetch(uri, quiet)
    assert (first.read_bytes(), second.read_bytes()) == (b"1\n", b"changed\n")
    assert remote.cached(uri) == second


def test_a_download_that_broke_off_goes_on_with_the_files_that_are_missing(bucket: Bucket, tmp_path: Path) -> None:
    target = tmp_path / "start-model"
    bucket.fails_on = "model.safetensors"
    with pytest.raises(InfraError, match="the store is gone"):
        remote.download("s3://bucket/m/tiny", target, None)
    assert not target.exists()
    before = bucket.reads[:-1]
    assert before
    bucket.fails_on, bucket.reads = "", []
    assert remote.download("s3://bucket/m/tiny", target, None) == "s3://bucket/m/tiny: 3 files, 104 B"
    assert not set(before) & set(bucket.reads)
    assert (target / "model.safetensors").read_bytes() == b"w" * 100
    record = json.loads(target.with_name("start-model.json").read_bytes())
    assert {name: size for name, (size, _) in record["files"].items()}["tiny/model.safetensors"] == 100
    assert remote.download("s3://bucket/m/tiny", target, None) == "s3://bucket/m/tiny: fetched before"


@pytest.mark.parametrize("address", ["m/tiny", "rows/*.jsonl", "rows/a.jsonl", "rows"])
def test_what_broke_off_is_never_taken_for_what_is_here(bucket: Bucket, address: str) -> None:
    uri, bucket.fails_on = f"s3://bucket/{address}", "json" if "m/" in address else "a.jsonl"
    for _ in range(2):
        with pytest.raises(InfraError, match="the store is gone"):
            remote.fetch(uri, quiet)
        assert remote.cached(uri) is None
    bucket.fails_on = ""
    place = remote.fetch(uri, quiet)
    assert list(place.parent.glob(place.name)), "files are there"
    assert remote.cached(uri) == place


def test_files_of_two_states_of_a_store_never_become_one_model(bucket: Bucket, tmp_path: Path) -> None:
    target = tmp_path / "start-model"
    bucket.fails_on = "tokenizer.json"
    with pytest.raises(InfraError):
        remote.download("s3://bucket/m/tiny", target, None)
    bucket.write("m/tiny/model.safetensors", b"n" * 100)  # of the same size
    bucket.fails_on = ""
    remote.download("s3://bucket/m/tiny", target, None)
    assert (target / "model.safetensors").read_bytes() == b"n" * 100


def test_a_store_that_changes_during_the_download_gives_no_source(bucket: Bucket, tmp_path: Path) -> None:
    whole = ObjectStore.blocks

    def changing(self: ObjectStore, key: str, start: int, size: int) -> Iterator[bytes]:
        yield from whole(self, key, start, size)
        bucket.write("m/tiny/config.json", b"[]")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectStore, "blocks", changing)
        with pytest.raises(DataError, match="changed while it was downloaded"):
            remote.download("s3://bucket/m/tiny", tmp_path / "m", None)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("s3://bucket/m/ti", "isn't there: no object has that name or lies below"),
        ("s3://bucket/rows/*.parquet", "isn't there"),
        ("s3://bucket", "names a whole bucket"),
        ("s3://bucket/", "names a whole bucket"),
    ],
)
def test_an_address_with_nothing_behind_it_is_told(bucket: Bucket, address: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        remote.fetch(address, quiet)


def test_a_key_that_leaves_its_folder_writes_nothing_there(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ObjectStore, "entries", lambda self, prefix: {f"{prefix}../../evil": (1, "e")})
    with pytest.raises(ConfigError, match="leaves its folder"):
        remote.download("s3://bucket/m/tiny", tmp_path / "a" / "b" / "m", None)
    assert not list(tmp_path.rglob("evil"))


def test_a_full_disk_is_told_as_such(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfraError, match="can't be kept here"):
        remote.download("s3://bucket/m/tiny", tmp_path / "file" / "m", None)


def test_a_cache_that_was_removed_is_not_read(bucket: Bucket, tmp_path: Path) -> None:
    place = remote.fetch("s3://bucket/m/tiny", quiet)
    shutil.rmtree(place.parent)
    assert remote.cached("s3://bucket/m/tiny") is None
    assert below(remote.fetch("s3://bucket/m/tiny", quiet)) == {"config.json", "model.safetensors", "tokenizer.json"}
