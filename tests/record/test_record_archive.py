"""Copies of run directories in an object store: whole whenever a writer dies, never of two times."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import areal
import pytest
from areal.cli.arguments import run_here
from areal.errors import ConfigError, DataError, InfraError
from areal.object_store import ObjectStore, store_address
from areal.record import archive
from areal.record.archive import LISTING, Archive, RunListing
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore
from support.archived_runs import make_run, tree


@dataclass(frozen=True)
class FailingStore(ObjectStore):
    """Fails before or after the n-th change, as a client that was killed there; `changes` counts them."""

    changes: list[str] = field(default_factory=list)
    fails_at: int = 0
    after: bool = False

    def _change(self, what: str, before: bool) -> None:
        if before:
            self.changes.append(what)
        if len(self.changes) == self.fails_at and before is not self.after:
            raise InfraError("killed here")

    def write(self, key: str, blocks: object, size: int) -> bool:
        self._change(key, before=True)
        found = super().write(key, blocks, size)  # type: ignore[arg-type]
        self._change(key, before=False)
        return found

    def replace(self, key: str, data: bytes, mark: str | None) -> bool:
        self._change(key, before=True)
        found = super().replace(key, data, mark)
        self._change(key, before=False)
        return found

    def delete(self, keys: Iterable[str]) -> None:
        self._change("delete", before=True)
        super().delete(keys)
        self._change("delete", before=False)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore("memory://", MemoryStore())


def fetched(store: ObjectStore, target: Path) -> dict[str, bytes]:
    archive.fetch(store, target, ["."], lambda words: None)
    return tree(target)


def test_a_run_comes_back_as_it_was_without_its_secrets_and_versions(
    run_dir: Path, store: ObjectStore, tmp_path: Path
) -> None:
    Archive(run_dir).copy(store)
    back = fetched(store, tmp_path / "back")
    left_out = ("access/", "redis/", "weights/", "cards/")
    assert back == {path: data for path, data in tree(run_dir).items() if not path.startswith(left_out)}
    assert "checkpoints/step-000008.f1/.metadata" in back  # hidden, and read again
    assert not any("weights" in path or "token" in path for path in back)


def test_a_second_pass_sends_what_changed_alone(run_dir: Path, store: ObjectStore) -> None:
    copier, sent = Archive(run_dir), []
    copier.copy(store, sent.append)
    assert sum(sent) > 0
    sent.clear()
    copier.copy(store, sent.append)
    assert sent == []
    with (run_dir / "journal" / "controller.jsonl").open("ab") as file:
        file.write(b'{"kind":"assign"}\n')
    copier.copy(store, sent.append)
    assert sum(sent) == (run_dir / "journal" / "controller.jsonl").stat().st_size


def test_of_a_file_that_grew_the_end_is_sent_and_a_broken_fetch_goes_on_by_pieces(
    run_dir: Path, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_PIECE_BYTES", 1000)
    journal, copier, sent = run_dir / "journal" / "controller.jsonl", Archive(run_dir), []
    journal.write_bytes(b"".join(b"%9d\n" % at for at in range(1234)))
    copier.copy(store)
    with journal.open("ab") as file:
        file.write(b"another\n")
    copier.copy(store, sent.append)
    assert sum(sent) == 348
    _, digests = archive.listing_of(store).files["journal/controller.jsonl"]
    assert len(digests) == 13
    assert fetched(store, tmp_path / "back")["journal/controller.jsonl"] == journal.read_bytes()

    read: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        whole = ObjectStore.blocks
        patch.setattr(ObjectStore, "blocks", lambda *asked: read.append(asked[1]) or whole(*asked))
        part = tmp_path / "again" / "journal" / "controller.jsonl.part"
        part.parent.mkdir(parents=True)
        part.write_bytes(journal.read_bytes()[:4500])
        archive.fetch(store, tmp_path / "again", ["journal"], lambda words: None)
    assert part.with_name("controller.jsonl").read_bytes() == journal.read_bytes()
    assert [key for key in read if key.removeprefix("blobs/") in digests[:4]] == []
    assert len(read) >= 9


def test_a_copy_of_an_older_version_names_whole_files(
    run_dir: Path, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Archive(run_dir).copy(store)
    monkeypatch.setattr(archive, "_PIECE_BYTES", 100)  # now they are longer than a piece
    assert fetched(store, tmp_path / "back")["resolved.json"] == (run_dir / "resolved.json").read_bytes()
    Archive(run_dir, clock=lambda: 10.0**10).copy(store)
    Archive(run_dir, clock=lambda: 2 * 10.0**10).copy(store)
    assert max(size for size, _ in store.entries("blobs/").values()) == 100
    assert fetched(store, tmp_path / "pieces") == fetched(store, tmp_path / "back")


def test_what_the_listing_names_is_not_asked_for_again(run_dir: Path, store: ObjectStore) -> None:
    asked: list[str] = []

    @dataclass(frozen=True)
    class Asked(ObjectStore):
        def stat(self, key: str) -> tuple[int, str] | None:
            asked.append(key)
            return super().stat(key)

    copier, counting = Archive(run_dir), Asked("memory://", store._connection)
    copier.copy(counting)
    assert asked
    asked.clear()
    copier.copy(counting)
    assert asked == []


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("piece", [200, 16 << 20])
def test_a_writer_that_is_killed_anywhere_leaves_the_run_as_one_pass_saw_it(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool, piece: int
) -> None:
    monkeypatch.setattr(archive, "_PIECE_BYTES", piece)
    held = MemoryStore()
    Archive(run_dir, clock=lambda: 0.0).copy(ObjectStore("memory://", held))
    first = fetched(ObjectStore("memory://", held), tmp_path / "first")
    shutil.rmtree(run_dir / "checkpoints" / "step-000004.f1")
    make_run(run_dir, step=12)
    second = {path: data for path, data in tree(run_dir).items() if path in first or "step-000012" in path}
    killed = 0
    for at in range(1, 600):
        store = FailingStore("memory://", held, fails_at=at, after=after)
        try:
            Archive(run_dir, clock=lambda: 10.0**9).copy(store)
        except InfraError:
            killed += 1
        found = fetched(ObjectStore("memory://", held), tmp_path / f"found-{at}")
        assert found in (first, second), sorted(found.keys() ^ second.keys())
        if len(store.changes) < at:
            break
    assert killed >= 3
    assert found == second
    store = ObjectStore("memory://", held)
    store.write("blobs/0123", lambda: [b"sent and never listed"], 21)
    Archive(run_dir, clock=lambda: 2 * 10.0**9).copy(store)  # sees it
    assert "blobs/0123" in store.entries("blobs/")
    listing = Archive(run_dir, clock=lambda: 3 * 10.0**9).copy(store)  # and removes it
    assert {key.removeprefix("blobs/") for key in store.entries("blobs/")} == listing.digests


def test_a_writer_is_killed_with_an_old_listing_s_blobs_still_there_for_who_reads_it(
    run_dir: Path, store: ObjectStore, tmp_path: Path
) -> None:
    now = 0.0
    copier = Archive(run_dir, clock=lambda: now)
    copier.copy(store)
    old = archive.listing_of(store)
    shutil.rmtree(run_dir / "checkpoints" / "step-000004.f1")
    now = 60.0
    copier.copy(store)
    gone = {path for path in old.files if "step-000004" in path}
    assert gone
    assert all(store.stat(f"blobs/{old.files[path][1][0]}") is not None for path in gone)
    now = 60.0 + 3601
    copier.copy(store)
    left = {old.files[path][1][0] for path in gone} - archive.listing_of(store).digests
    assert left
    assert all(store.stat(f"blobs/{digest}") is None for digest in left)
    assert archive.listing_of(store).dropped == {}
    assert fetched(store, tmp_path / "back")


def test_of_two_writers_one_listing_holds_and_names_only_what_is_there(
    run_dir: Path, store: ObjectStore, tmp_path: Path
) -> None:
    """A second copier that was slower: its listing is refused, and the next pass starts from the other's."""

    @dataclass(frozen=True)
    class Late(ObjectStore):
        def replace(self, key: str, data: bytes, mark: str | None) -> bool:
            Archive(run_dir).copy(store)  # the other one, between this one's read and its write
            return super().replace(key, data, mark)

    Archive(run_dir).copy(store)
    found = store.read(LISTING)
    assert found is not None
    make_run(run_dir, step=12)
    Archive(run_dir).copy(Late("memory://", store._connection))
    after = archive.listing_of(store)
    assert any("step-000012" in path for path in after.files)
    assert not store.replace(LISTING, RunListing(at=-1.0).encoded(), found[1])
    assert archive.listing_of(store) == after
    assert fetched(store, tmp_path / "back")


def test_a_writer_whose_listing_is_refused_removes_nothing(run_dir: Path, store: ObjectStore, tmp_path: Path) -> None:
    """What it takes for left, the other writer's listing may name again."""
    now, extra = 0.0, run_dir / "logs" / "extra.log"
    extra.write_bytes(b"named again")
    copier = Archive(run_dir, clock=lambda: now)
    copier.copy(store)
    extra.unlink()
    copier.copy(store)
    now = 4000.0

    @dataclass(frozen=True)
    class Late(ObjectStore):
        def replace(self, key: str, data: bytes, mark: str | None) -> bool:
            extra.write_bytes(b"named again")
            Archive(run_dir, clock=lambda: now).copy(store)
            return super().replace(key, data, mark)

    copier.copy(Late("memory://", store._connection))
    assert fetched(store, tmp_path / "back")["logs/extra.log"] == b"named again"


def test_half_an_object_is_written_again(run_dir: Path, store: ObjectStore, tmp_path: Path) -> None:
    listing = Archive(run_dir).copy(store)
    size, (digest,) = listing.files["journal/controller.jsonl"]
    store.delete([f"blobs/{digest}"])
    store.write(f"blobs/{digest}", lambda: [b"half"], 4)
    Archive(run_dir).copy(store)
    assert (store.stat(f"blobs/{digest}") or (0,))[0] == size
    assert "journal/controller.jsonl" in fetched(store, tmp_path / "back")


def test_a_directory_that_goes_away_meanwhile_is_left_out_whole(
    run_dir: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_AT_ONCE", 1)  # one file is sent, the next is gone

    def sent(count: int) -> None:
        shutil.rmtree(run_dir / "checkpoints" / "step-000004.f1", ignore_errors=True)

    after = Archive(run_dir).copy(store, sent)
    names = {path.split("/")[1] for path in after.files if path.startswith("checkpoints/")}
    assert names == {"step-000008.f1"}


def test_a_file_that_is_rewritten_while_it_is_sent_fails_the_pass(
    run_dir: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_BLOCK_BYTES", 16)
    journal, copier = run_dir / "journal" / "controller.jsonl", Archive(run_dir)
    copier.copy(store)
    before = store.read(LISTING)
    with journal.open("ab") as file:
        file.write(b'{"kind":"assign"}\n')

    def sent(count: int) -> None:
        journal.write_bytes(b"x" * journal.stat().st_size)

    with pytest.raises(InfraError, match=r"controller\.jsonl changed while it was copied"):
        copier.copy(store, sent)
    assert store.read(LISTING) == before


def test_a_damaged_checkpoint_is_left_out_and_another_damaged_file_is_refused(
    run_dir: Path, store: ObjectStore, tmp_path: Path
) -> None:
    listing = Archive(run_dir).copy(store)
    said: list[str] = []

    def damage(path: str) -> None:
        size, (digest,) = listing.files[path]
        store.delete([f"blobs/{digest}"])
        store.write(f"blobs/{digest}", lambda: [bytes(size)], size)

    damage("checkpoints/step-000008.f1/rank.distcp")
    archive.fetch(store, tmp_path / "one", ["."], said.append)
    assert any("step-000008.f1/rank.distcp is left out" in words for words in said)
    assert not (tmp_path / "one" / "checkpoints" / "step-000008.f1" / "rank.distcp").exists()
    _, (digest,) = listing.files["checkpoints/step-000008.f1/rank.distcp"]
    store.delete([f"blobs/{digest}"])
    Archive(run_dir).copy(store)  # the store has it again
    archive.fetch(store, tmp_path / "one", ["."], said.append)
    assert tree(tmp_path / "one" / "checkpoints") == tree(run_dir / "checkpoints")
    damage("journal/controller.jsonl")
    with pytest.raises(DataError, match=r"controller\.jsonl is not as it was listed"):
        archive.fetch(store, tmp_path / "two", ["."], said.append)
    assert not (tmp_path / "two" / "journal" / "controller.jsonl").exists()


def test_what_broke_off_goes_on_and_what_is_there_is_not_fetched(
    run_dir: Path, store: ObjectStore, tmp_path: Path
) -> None:
    Archive(run_dir).copy(store)
    target = tmp_path / "back"
    part = target / "checkpoints" / "step-000008.f1" / "rank.distcp.part"
    part.parent.mkdir(parents=True)
    part.write_bytes((run_dir / "checkpoints" / "step-000008.f1" / "rank.distcp").read_bytes()[:100])
    archive.fetch(store, target, ["checkpoints"], lambda words: None)
    assert tree(target / "checkpoints") == tree(run_dir / "checkpoints")
    assert archive.fetch(store, target, ["checkpoints"], lambda words: None) == 0
    other = part.with_name("rank.distcp")
    other.write_bytes(b"x" * other.stat().st_size)  # as long, and not the same
    assert archive.fetch(store, target, ["checkpoints"], lambda words: None) == 1
    part.write_bytes(b"of another time" * 1000)  # longer than the file: begun anew
    part.with_name("rank.distcp").unlink()
    assert archive.fetch(store, target, ["checkpoints"], lambda words: None) == 1
    assert tree(target / "checkpoints") == tree(run_dir / "checkpoints")


def test_a_run_goes_on_elsewhere_from_its_checkpoints_and_record(
    run_dir: Path, store: ObjectStore, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="there is no run at"):
        archive.restore(store, tmp_path / "none", lambda words: None)
    archive.begin(store)
    with pytest.raises(DataError, match="has no checkpoint yet"):
        archive.restore(store, tmp_path / "none", lambda words: None)
    Archive(run_dir).copy(store)
    archive.begin(store)  # changes nothing
    archive.restore(store, tmp_path / "back", lambda words: None)
    names = {path.split("/")[0] for path in tree(tmp_path / "back")}
    assert {"checkpoints", "journal", "fences", "evidence", "metrics.jsonl", "dataset"} <= names
    assert not names & {"resolved.json", "live.json", "logs", "access", "redis"}
    for path, (_, (digest,)) in archive.listing_of(store).files.items():
        if path.endswith("/.metadata"):
            store.delete([f"blobs/{digest}"])
    with pytest.raises(DataError, match="no checkpoint of the run at memory:// is whole"):
        archive.restore(store, tmp_path / "damaged", lambda words: None)
    assert archive.file_of(store, "resolved.json") == (run_dir / "resolved.json").read_bytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"at": 1, "files": {"../outside": [1, "d"]}, "dropped": {}}',
        b'{"at": 1, "files": {"/etc/passwd": [1, "d"]}, "dropped": {}}',
        b'{"at": 1, "files": {"a": [1]}, "dropped": {}}',
        b'{"at": 1, "files": {"a": [1, []]}, "dropped": {}}',
        b'{"at": 1, "files": {"a": [40000000, ["d", "e"]]}, "dropped": {}}',
        b'{"at": 1, "files": {}}',
    ],
)
def test_what_is_no_listing_is_refused(store: ObjectStore, tmp_path: Path, data: bytes) -> None:
    store.replace(LISTING, data, None)
    with pytest.raises(DataError, match="lists no run"):
        archive.fetch(store, tmp_path, ["."], lambda words: None)
    assert tree(tmp_path) == {}


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["metrics.jsonl", "journal/a", "journal/b", "exports/step-1/w", "model/x/y", "logs/a.log"]),
        st.binary(max_size=200),
        min_size=1,
    ),
    st.lists(st.tuples(st.sampled_from(["journal/a", "metrics.jsonl", "logs/a.log"]), st.binary(max_size=50))),
    st.sampled_from([1, 7, 64, 1 << 20]),
)
def test_any_run_is_the_same_after_any_appends(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], appends: list[tuple[str, bytes]], piece: int
) -> None:
    root, store = tmp_path_factory.mktemp("any"), ObjectStore("memory://", MemoryStore())
    for path, data in files.items():
        (root / "run" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "run" / path).write_bytes(data)
    copier = Archive(root / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "_PIECE_BYTES", piece)
        copier.copy(store)
        for path, data in appends:
            (root / "run" / path).parent.mkdir(parents=True, exist_ok=True)
            with (root / "run" / path).open("ab") as file:
                file.write(data)
            copier.copy(store)
        assert fetched(store, root / "back") == tree(root / "run")


def test_an_option_that_no_store_knows_is_named(tmp_path: Path) -> None:
    (tmp_path / "acess_key").write_text("x")
    with pytest.raises(ConfigError, match="acess_key") as caught:
        ObjectStore.connect("s3://bucket/runs", tmp_path)
    assert "storage.storeSecret" in caught.value.fix


def test_commands_and_python_take_a_run_s_address(
    run_dir: Path, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ObjectStore, "connect", lambda url: asked.append(url) or store)
    monkeypatch.chdir(tmp_path)
    Archive(run_dir).copy(store)
    address = "s3://models/rl/team/digits-1f3a9c02"
    found = run_here(Path(address), None, None, None, "journal")
    assert found == Path("runs/store/digits-1f3a9c02")
    assert {path.split("/")[0] for path in tree(found)} == {
        "resolved.json", "live.json", "metrics.jsonl", "evidence", "journal",
    }  # fmt: skip
    assert areal.open(address).directory == found.absolute()
    assert (found / "logs" / "trainer.log").exists()
    assert asked == [address, address]
    assert run_here(run_dir, None, None, None) == run_dir
    assert store_address("gs://bucket/a") == store_address(Path("gs://bucket/a")) == "gs://bucket/a"
    assert [store_address(one) for one in ("runs/digits", "/tmp/s3:/a", "rljob/digits", "http://x/y")] == [None] * 4
