"""Runs that are copied to an object store: an S3 server on loopback, killed, busy, forgetful; nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from areal.errors import ConfigError, ExitCode, InfraError
from areal.ledger.audit import audit
from areal.object_store import ObjectStore
from areal.plan import ResolvedJob
from areal.record import archive
from areal.record.archive import LISTING, Archive
from support.archived_runs import make_run, tree
from support.job_run import ROOT, VICTIMS, JobRun
from support.s3_server import BUCKET, FaultyProxy, S3Server, s3_server

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3") as running:
        for name, value in running.options.items():
            monkeypatch.setenv(name, value)
        yield running


def test_the_store_s_own_rules_are_as_the_copies_need_them(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What unit tests assume of a store in memory, of a real one."""
    run_dir, store = make_run(tmp_path / "run"), ObjectStore.connect(f"s3://{BUCKET}/a/run-1")
    archive.begin(store)
    first = store.read(LISTING)
    assert first is not None
    copier, sent = Archive(run_dir), []
    copier.copy(store, sent.append)
    assert not store.replace(LISTING, b"{}", first[1])  # it has changed since
    assert not store.replace(LISTING, b"{}", None)  # and is there
    archive.fetch(store, tmp_path / "back", ["."], lambda words: None)
    back = tree(tmp_path / "back")
    assert back
    assert back.items() <= tree(run_dir).items()
    size = 40 << 20  # in parts, and in ranges
    assert store.write("blobs/large", lambda: (bytes([at % 251]) * (1 << 20) for at in range(40)), size)
    assert not store.write("blobs/large", list, size)
    blocks = b"".join(store.blocks("blobs/large", 5, size))
    assert blocks == b"".join(bytes([at % 251]) * (1 << 20) for at in range(40))[5:]
    store.delete(["blobs/large", "blobs/none"])
    assert store.stat("blobs/large") is None
    assert store.read("nothing") is None

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ConfigError, match="refuses"):
        ObjectStore.connect(f"s3://{BUCKET}/a").read(LISTING)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.options["AWS_SECRET_ACCESS_KEY"])
    with pytest.raises(ConfigError, match="not found"):
        archive.begin(ObjectStore.connect("s3://no-such-bucket/a"))


def test_lost_answers_and_busy_stores_cost_a_pass_at_most(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make_run(tmp_path / "run")
    with FaultyProxy(server.port).running() as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        store = ObjectStore.connect(f"s3://{BUCKET}/b/run-1")
        archive.begin(store)
        puts = sum(words.startswith("PUT") for words in proxy.seen)
        proxy.lost = 1
        assert store.replace("pointer", b"mine", None)  # written, unheard of, refused by itself, and ours
        assert sum(words.startswith("PUT") for words in proxy.seen) > puts + 1
        found = store.read("pointer")
        assert found is not None
        assert found[0] == b"mine"
        proxy.lost = 1
        assert store.replace("pointer", b"again", found[1])
        proxy.lost, proxy.busy = 3, 3
        Archive(run_dir).copy(store)
        assert (proxy.lost, proxy.busy) == (0, 0)
        archive.fetch(store, tmp_path / "back", ["."], lambda words: None)
        assert tree(tmp_path / "back").items() <= tree(run_dir).items()
        server.stop()
        with pytest.raises(InfraError, match="can't be reached"):
            Archive(run_dir).copy(store)
        server.start()
        archive.fetch(store, tmp_path / "again", ["."], lambda words: None)
        assert tree(tmp_path / "again") == tree(tmp_path / "back")


def test_credentials_that_expire_in_the_middle_cost_what_was_on_its_way(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_PIECE_BYTES", 64 << 10)
    run_dir = make_run(tmp_path / "run")
    (run_dir / "journal" / "controller.jsonl").write_bytes(os.urandom(4 << 20))
    with FaultyProxy(server.port).running() as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        connect = lambda: ObjectStore.connect(f"s3://{BUCKET}/c/run-1")  # noqa: E731
        archive.begin(connect())
        copier, sent = Archive(run_dir), []

        def count(size: int) -> None:
            sent.append(size)
            proxy.expired = sum(sent) > 2 << 20

        with pytest.raises((ConfigError, InfraError), match="expired"):
            copier.copy(connect(), count)
        before = sum(sent)
        proxy.expired = False
        whole = sum(size for size, _ in copier.copy(connect(), sent.append).files.values())
        assert whole <= sum(sent) <= whole + 8 * (64 << 10)
        assert before > 2 << 20

        fetched: list[str] = []
        blocks = ObjectStore.blocks

        def counted(self: ObjectStore, key: str, start: int, size: int) -> Iterator[bytes]:
            fetched.append(key)
            proxy.expired = len(fetched) == 30
            return blocks(self, key, start, size)

        monkeypatch.setattr(ObjectStore, "blocks", counted)
        with pytest.raises((ConfigError, InfraError), match="expired"):
            archive.fetch(connect(), tmp_path / "back", ["."], lambda words: None)
        proxy.expired = False
        archive.fetch(connect(), tmp_path / "back", ["."], lambda words: None)
        assert tree(tmp_path / "back").items() <= tree(run_dir).items()
        assert len(fetched) <= 64 + 30, "pieces that had come weren't fetched again"


def test_a_model_and_rows_of_a_busy_store_start_a_run_and_one_that_is_gone_is_told(
    start_job: Callable[..., JobRun], server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = server.root / "data" / BUCKET
    shutil.copytree(ROOT / "runs" / "digits-sft" / "model", data / "start")
    shutil.copy(ROOT / "data" / "digits" / "train.jsonl", data)
    (data / "start" / "optimizer.pt").write_bytes(b"x" * 1000)
    with FaultyProxy(server.port).running() as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        proxy.busy = 3
        named = (f"model.uri=s3://{BUCKET}/start", "model.path=null", f"dataset.train.jsonl=s3://{BUCKET}/train.jsonl")
        run = start_job("algorithm.maxSteps=2", *named)
        assert run.finish(timeout_s=240) in (0, 65), run.output[-4000:]
        assert run.audit()["trained"] == 32
        assert proxy.busy == 0
        read = {words.split()[1].split("?")[0] for words in proxy.seen if words.startswith("GET")}
        assert f"/{BUCKET}/start/model.safetensors" in read
        assert f"/{BUCKET}/start/optimizer.pt" not in read
        server.stop()
        refused = start_job("algorithm.maxSteps=2", *named)
        assert refused.finish(timeout_s=240) == ExitCode.INFRA
        assert "can't be reached" in refused.output
    started = ResolvedJob.load(run.run_dir / "resolved.json")
    assert started.model_path.is_relative_to(tmp_path / "cache")


def test_a_run_whose_machine_is_gone_goes_on_from_its_copy(
    start_job: Callable[..., JobRun], server: S3Server, tmp_path: Path
) -> None:
    stored = f"storage.store=s3://{BUCKET}/jobs"
    first = start_job("algorithm.maxSteps=400", stored)
    first.wait_for("a checkpoint", lambda: first.step() >= 6, timeout_s=180)
    server.stop()  # training waits for none of it
    step = first.step()
    first.wait_for("steps without the store", lambda: first.step() >= step + 4, timeout_s=120)
    server.start()
    first.processes("areal.processes.role", "archive")[-1].kill()

    def copied() -> bool:
        names = list((server.root / "data" / BUCKET / "jobs" / "local").glob("*/run.json"))
        return bool(names) and any("checkpoints/step-" in path for path in json.loads(names[0].read_bytes())["files"])

    first.wait_for("a copy with a checkpoint", copied, timeout_s=120)
    first.stop()
    shutil.rmtree(first.run_dir)
    name = next((server.root / "data" / BUCKET / "jobs" / "local").iterdir()).name
    address = f"s3://{BUCKET}/jobs/local/{name}"
    pulled = tmp_path / "pulled"
    archive.fetch(ObjectStore.connect(address), pulled, ["."], lambda words: None)
    begun = len((pulled / "metrics.jsonl").read_bytes().splitlines())
    assert audit(pulled).ok
    steps = begun + 6
    second = start_job(f"algorithm.maxSteps={steps}", f"storage.restore={address}", stored)
    second.wait_for("a step", lambda: second.step() > begun, timeout_s=180)
    second.processes(*VICTIMS["trainer"])[-1].kill()
    assert second.finish(timeout_s=240) in (0, 65), second.output[-4000:]
    found = second.audit()
    assert (found["trained"], found["lost"], found["duplicated"]) == (steps * 16, 0, 0)
    assert second.summary()["staleness"]["max"] <= 2
