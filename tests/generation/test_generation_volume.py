"""A server without a mount: copies of the start model and of versions, over real gRPC, through faults of every kind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from areal.errors import DataError, InfraError
from areal.generation.volume import ReaderTree, VolumeFilesService
from areal.net.auth import header
from areal.net.server import GrpcServer, LoopThread
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import weights_pb2 as wire
from areal.v1 import weights_pb2_grpc as rpc
from areal.values.policy import PolicyId
from areal.weights.mirror import MODEL, VolumeMirror
from areal.weights.publish import WeightsRef, publish
from areal.weights.stage import StagingArea
from support.published import CANARY, FILES, Volume, same, sources, take

pytestmark = pytest.mark.component

TOKEN = "of-the-job"


class Serving:
    """The service on a loop of its own, at one port over all its starts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = 0
        self.metrics = RoleMetrics("weights", f"job-{root.name}")
        self._loop = LoopThread("volume")
        self.start()

    def start(self) -> None:
        async def serve() -> GrpcServer:
            server = GrpcServer("weights", TOKEN, waits=WaitRegistry("weights"), progress=ProgressCounter())
            self._service = VolumeFilesService({MODEL: self.root / "start"}, self.root / "weights", self.metrics)
            server.add(rpc.add_VolumeFilesServicer_to_server, self._service, "areal.v1.VolumeFiles")
            self.port = await server.start(self.port)
            return server

        self._server = self._loop.call(serve(), 20)

    def stop(self) -> None:
        self._loop.call(self._server.stop(0), 20)

    def sent(self) -> float:
        return self.metrics.counter("areal_volume_read_bytes_total")._value.get()

    def end(self) -> None:
        self.stop()
        self._loop.stop()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "start" / "nested").mkdir(parents=True)
    (tmp_path / "start" / "config.json").write_bytes(b"{}")
    (tmp_path / "start" / "model.safetensors").write_bytes(os.urandom(5_000_000))
    (tmp_path / "weights").mkdir()
    serving = Serving(tmp_path)
    yield serving
    serving.end()


def mirror_of(serving: Serving, root: Path, patience_s: float = 10.0) -> VolumeMirror:
    return VolumeMirror(root, f"127.0.0.1:{serving.port}", TOKEN, patience_s=patience_s)


def test_the_start_model_is_copied_as_it_lies(serving: Serving, tmp_path: Path) -> None:
    mirror = mirror_of(serving, tmp_path / "own")
    copy = mirror.directory(MODEL)
    assert sorted(path.name for path in copy.iterdir()) == ["config.json", "model.safetensors"]
    assert (copy / "model.safetensors").read_bytes() == (tmp_path / "start" / "model.safetensors").read_bytes()
    serving.stop()
    assert mirror.directory(MODEL) == copy, "what is there is not asked for again"


def test_deltas_come_out_as_on_the_volume_and_old_copies_go(serving: Serving, tmp_path: Path) -> None:
    volume = Volume(tmp_path / "weights", 4)
    mirror = mirror_of(serving, tmp_path / "own")
    stage = StagingArea(tmp_path / "stage", mirror)
    for version, ref in enumerate(volume.refs):
        there = ref.__class__(**{**ref.__dict__, "path": mirror.place(ref.path)})
        assert same(take(stage, there), version)
    kept = {path.name for path in (tmp_path / "own").iterdir()}
    assert kept == {PolicyId(3, 1).directory, PolicyId(4, 1).directory}
    sent = serving.sent()
    assert sent < 2 * sum(file.stat().st_size for ref in volume.refs for file in ref.path.iterdir())


def test_a_late_joiner_brings_the_whole_chain(serving: Serving, tmp_path: Path) -> None:
    volume = Volume(tmp_path / "weights", 3)
    mirror = mirror_of(serving, tmp_path / "own")
    last = volume.refs[-1]
    staged = StagingArea(tmp_path / "stage", mirror).prepare(mirror.place(last.path), last.manifest_digest)
    assert staged.manifest.policy_id == PolicyId(3, 1)


def test_a_stream_that_breaks_is_continued_from_its_byte(serving: Serving, tmp_path: Path) -> None:
    big = 48_000_000
    (tmp_path / "start" / "model.safetensors").write_bytes(os.urandom(big))
    mirror = mirror_of(serving, tmp_path / "own", 30.0)
    found: list[Path] = []
    reader = threading.Thread(target=lambda: found.append(mirror.directory(MODEL)))
    reader.start()
    breaks = 0
    while reader.is_alive() and breaks < 3:
        before = serving.sent()
        while serving.sent() == before and reader.is_alive():
            time.sleep(0.001)
        if reader.is_alive():
            serving.stop()
            serving.start()
            breaks += 1
    reader.join(60)
    assert breaks >= 1
    assert (found[0] / "model.safetensors").read_bytes() == (tmp_path / "start" / "model.safetensors").read_bytes()


def test_nothing_has_its_name_before_it_is_whole(serving: Serving, tmp_path: Path) -> None:
    mirror = mirror_of(serving, tmp_path / "own", 0.3)
    serving.stop()
    with pytest.raises(InfraError, match="UNAVAILABLE"):
        mirror.directory(MODEL)
    assert not (tmp_path / "own" / MODEL).exists()
    serving.start()
    assert mirror.directory(MODEL).is_dir()


def test_a_copy_that_is_damaged_is_refused_and_read_again(serving: Serving, tmp_path: Path) -> None:
    ref = publish(tmp_path / "weights", PolicyId(0, 1), sources(0), CANARY, FILES)
    mirror = mirror_of(serving, tmp_path / "own")
    stage = StagingArea(tmp_path / "stage", mirror)
    place = mirror.place(ref.path)
    stage.prepare(place, ref.manifest_digest)
    shard = next(iter(place.glob("*.safetensors")))
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(DataError, match="differs from what was published"):
        stage.prepare(place, ref.manifest_digest)
    assert stage.prepare(place, ref.manifest_digest).path == place


def test_another_version_of_the_same_name_is_refused_then_replaced(serving: Serving, tmp_path: Path) -> None:
    ref = publish(tmp_path / "weights", PolicyId(0, 1), sources(0), CANARY, FILES)
    mirror = mirror_of(serving, tmp_path / "own")
    stage = StagingArea(tmp_path / "stage", mirror)
    stage.prepare(mirror.place(ref.path), ref.manifest_digest)
    shutil.rmtree(ref.path)
    other = publish(tmp_path / "weights", PolicyId(0, 1), sources(1), CANARY, FILES)
    with pytest.raises(DataError, match="as announced"):
        stage.prepare(mirror.place(ref.path), "0" * 64)
    assert stage.prepare(mirror.place(other.path), other.manifest_digest).manifest.digest() == other.manifest_digest


def test_the_manifest_alone_is_small(serving: Serving, tmp_path: Path) -> None:
    ref = publish(tmp_path / "weights", PolicyId(0, 1), sources(0), CANARY, FILES)
    mirror = mirror_of(serving, tmp_path / "own")
    stage = StagingArea(tmp_path / "stage", mirror)
    assert stage.manifest(mirror.place(ref.path), ref.manifest_digest).digest() == ref.manifest_digest
    assert serving.sent() == (ref.path / "manifest.json").stat().st_size
    with pytest.raises(DataError, match="as announced"):
        stage.manifest(mirror.place(ref.path), "0" * 64)


def test_what_was_collected_is_told(serving: Serving, tmp_path: Path) -> None:
    mirror = mirror_of(serving, tmp_path / "own")
    with pytest.raises(DataError, match="can't be read from the volume"):
        mirror.bring(mirror.place(Path(PolicyId(7, 1).directory)), "0" * 64)


def test_a_closed_mirror_ends_what_it_reads(serving: Serving, tmp_path: Path) -> None:
    mirror = mirror_of(serving, tmp_path / "own", 600.0)
    serving.stop()
    raised: list[BaseException] = []

    def read() -> None:
        try:
            mirror.directory(MODEL)
        except (InfraError, ValueError) as error:
            raised.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.5)
    mirror.close()
    reader.join(10)
    assert not reader.is_alive()
    assert raised
    serving.start()


def test_a_source_has_two_readers_and_who_has_it_is_a_source() -> None:
    tree = ReaderTree()
    waiting, has, rounds = [f"server-{index}" for index in range(30)], 0, []
    while waiting:
        given = {reader: tree.source("v", reader, 0.0) for reader in waiting}
        turn = [reader for reader, source in given.items() if source is not None]
        assert len(turn) == min(2 * (has + 1), len(waiting))
        assert all(list(given.values()).count(source) <= 2 for source in set(given.values()) - {None})
        for reader in turn:
            tree.has("v", reader)
        waiting = [reader for reader in waiting if reader not in turn]
        has += len(turn)
        rounds.append(len(turn))
    assert rounds == [2, 6, 18, 4], "it grows by three times a round"


def test_a_reader_that_never_ends_gives_its_place_back() -> None:
    tree = ReaderTree()
    assert [tree.source("v", name, 0.0) for name in ("a", "b", "c")] == ["", "", None]
    assert tree.source("v", "a", 1.0) == "", "asking again takes no second place"
    assert tree.source("w", "c", 1.0) == "", "of another version it is another matter"
    assert tree.source("v", "c", 700.0) == ""


def test_a_server_that_lost_its_copy_is_not_sent_to_itself() -> None:
    tree = ReaderTree()
    tree.has("v", "a")
    given = [tree.source("v", name, 0.0) for name in ("b", "c", "d", "a", "e")]
    assert given == ["", "a", "", None, "a"]


def large_version(root: Path) -> WeightsRef:
    words = np.random.default_rng(1).integers(0, 2**16, (4, 5 << 20), dtype=np.uint16)
    tensors = [(f"layer.{index}", "U16", row.shape, row) for index, row in enumerate(words)]
    return publish(root, PolicyId(0, 1), tensors, CANARY, FILES, shard_bytes=11 << 20)


class Peers:
    """Servers with a mirror each, which serve what they have."""

    def __init__(self, serving: Serving, root: Path, count: int) -> None:
        self.mirrors = [mirror_of(serving, root / f"own-{index}") for index in range(count)]
        self.loop = LoopThread("peers")
        self.metrics = RoleMetrics("generation", f"job-{root.name}")
        self.servers = [self.loop.call(self._serve(mirror), 20) for mirror in self.mirrors]

    async def _serve(self, mirror: VolumeMirror) -> GrpcServer:
        waits = WaitRegistry("generation")
        server = GrpcServer("generation", TOKEN, waits=waits, progress=ProgressCounter())
        files = VolumeFilesService({}, mirror.root, self.metrics)
        server.add(rpc.add_VolumeFilesServicer_to_server, files, "areal.v1.VolumeFiles")
        mirror.address = f"127.0.0.1:{await server.start(0)}"
        return server

    def stop(self, index: int) -> None:
        self.loop.call(self.servers[index].stop(0), 20)

    def sent(self) -> float:
        return self.metrics.counter("areal_volume_read_bytes_total")._value.get()

    def close(self) -> None:
        for index, mirror in enumerate(self.mirrors):
            self.stop(index)
            mirror.close()
        self.loop.stop()


@pytest.fixture
def peers(serving: Serving, tmp_path: Path) -> Iterator[Peers]:
    made = Peers(serving, tmp_path, 6)
    yield made
    made.close()


def test_servers_read_from_each_other(serving: Serving, peers: Peers, tmp_path: Path) -> None:
    ref = large_version(tmp_path / "weights")
    size = sum(file.stat().st_size for file in ref.path.iterdir())
    digest = ref.manifest_digest
    threads = [threading.Thread(target=one.bring, args=(one.place(ref.path), digest)) for one in peers.mirrors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for index, mirror in enumerate(peers.mirrors):
        stage = StagingArea(tmp_path / f"stage-{index}", mirror)
        assert stage.prepare(mirror.place(ref.path), digest).manifest.digest() == digest
    assert serving.sent() < 4.6 * size, "every round the volume has two readers, and servers have the others"
    assert peers.sent() >= 1.9 * size


def test_a_server_that_ends_while_another_reads_there_costs_a_way_around(
    serving: Serving, peers: Peers, tmp_path: Path
) -> None:
    ref = large_version(tmp_path / "weights")
    first, second = peers.mirrors[:2]
    first.bring(first.place(ref.path), ref.manifest_digest)
    serving._service._tree._reading[PolicyId(0, 1).directory, "x"] = ("", time.monotonic() + 600)
    reading = threading.Thread(target=second.bring, args=(second.place(ref.path), ref.manifest_digest))
    reading.start()
    while peers.sent() == 0 and reading.is_alive():
        time.sleep(0.001)
    assert peers.sent() > 0, "it read from the first"
    peers.stop(0)
    reading.join(60)
    stage = StagingArea(tmp_path / "stage", second)
    assert stage.prepare(second.place(ref.path), ref.manifest_digest).manifest.digest() == ref.manifest_digest


def test_readers_that_died_hold_nobody_up(
    serving: Serving, peers: Peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal.weights.mirror._LONGEST_TURN_S", 0.5)
    ref = large_version(tmp_path / "weights")
    for dead in ("x", "y"):
        serving._service._tree._reading[ref.path.name, dead] = ("", time.monotonic() + 600)
    first = peers.mirrors[0]
    began = time.monotonic()
    first.bring(first.place(ref.path), ref.manifest_digest)
    assert first.place(ref.path).is_dir()
    assert time.monotonic() - began >= 0.5, "it waited for a turn first"


def test_a_server_that_lies_is_found_out_and_the_volume_asked(serving: Serving, peers: Peers, tmp_path: Path) -> None:
    ref = large_version(tmp_path / "weights")
    first, second = peers.mirrors[:2]
    first.bring(first.place(ref.path), ref.manifest_digest)
    shard = max(first.place(ref.path).glob("*.safetensors"))
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    serving._service._tree._reading[PolicyId(0, 1).directory, "x"] = ("", time.monotonic() + 600)
    stage = StagingArea(tmp_path / "stage", second)
    with pytest.raises(DataError, match="differs from what was published"):
        stage.prepare(second.place(ref.path), ref.manifest_digest)
    assert peers.sent() > 0
    assert stage.prepare(second.place(ref.path), ref.manifest_digest).path == second.place(ref.path)


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("..", "passwd"), ("/etc", "passwd"), ("weights", "x"), (f"../weights/{PolicyId(0, 1).directory}", "x"),
        (MODEL, "../secret"), (MODEL, "/etc/passwd"), (MODEL, "nested"), (MODEL, ".."), (MODEL, ""),
        ("tokens", "x"), ("journal", "controller.jsonl"),
    ],
)  # fmt: skip
def test_no_other_file_of_the_volume_is_served(serving: Serving, tmp_path: Path, directory: str, name: str) -> None:
    (tmp_path / "secret").write_text("not this")
    with grpc.insecure_channel(f"127.0.0.1:{serving.port}") as channel:
        files = rpc.VolumeFilesStub(channel)
        asked = wire.ReadFileRequest(directory=directory, name=name)
        with pytest.raises(grpc.RpcError) as refused:
            list(files.ReadFile(asked, timeout=10, metadata=(header(TOKEN),)))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as unknown:
            list(files.ReadFile(asked, timeout=10, metadata=(header("another"),)))
        assert unknown.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_no_byte_waits_for_a_stopped_process(tmp_path: Path) -> None:
    """A peer that neither answers nor closes is given up: its machine may have lost its power."""
    silent = socket.create_server(("127.0.0.1", 0))
    script = "import socket,sys,time; s=socket.socket(fileno=int(sys.argv[1])); c,_=s.accept(); time.sleep(600)"
    number = str(silent.fileno())
    peer = subprocess.Popen([sys.executable, "-c", script, number], pass_fds=[silent.fileno()])
    port = silent.getsockname()[1]
    silent.close()
    mirror = VolumeMirror(tmp_path / "own", f"127.0.0.1:{port}", TOKEN, patience_s=0.5)
    try:
        with pytest.raises(InfraError):
            mirror.directory(MODEL)
    finally:
        mirror.close()
        peer.send_signal(signal.SIGKILL)
        peer.wait(10)


def test_the_loop_goes_on_while_files_are_read(serving: Serving, tmp_path: Path) -> None:
    """Reads of the disk are not the loop's: a health check meanwhile is answered."""
    (tmp_path / "start" / "model.safetensors").write_bytes(bytes(64_000_000))
    mirror = mirror_of(serving, tmp_path / "own")

    async def both() -> int:
        reading = asyncio.create_task(asyncio.to_thread(mirror.directory, MODEL))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0.002)
            turns += 1
        await reading
        return turns

    assert asyncio.run(both()) > 3
