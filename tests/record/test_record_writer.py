"""The writer of the recording: bounded, off the caller's thread, and never in a run's way."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from areal.observe.metrics import RoleMetrics
from areal.record import writer as writer_module
from areal.record.segment import FrameKind, Header, frames, read
from areal.record.writer import RecordWriter


@pytest.fixture
def metrics() -> RoleMetrics:
    return RoleMetrics("worker", "job")


def dropped(metrics: RoleMetrics, why: str) -> float:
    labels = {"namespace": "local", "rljob": "job", "role": "worker", "why": why}
    return metrics.registry.get_sample_value("areal_record_dropped_total", labels) or 0.0


def one(group: int, body: bytes = b"body"):
    return lambda: (Header(FrameKind.SAMPLE, group), body)


def kept(directory: Path) -> list[tuple[int, bytes | None]]:
    files = sorted(directory.glob("*.rec"))
    return [(frame.header.group, read(path, frame.offset)) for path in files for frame in frames(path)]


def test_what_is_offered_is_written_in_order(tmp_path, metrics):
    writer = RecordWriter(tmp_path / "new", "worker-0", metrics, keep_bytes=1 << 30)
    assert all(writer.offer(10, one(group, b"%d" % group)) for group in range(100))
    writer.close()
    assert kept(tmp_path / "new") == [(group, b"%d" % group) for group in range(100)]


def test_only_the_owner_may_read_a_segment(tmp_path, metrics):
    writer = RecordWriter(tmp_path, "worker-0", metrics, keep_bytes=1 << 30)
    writer.offer(10, one(1))
    writer.close()
    assert [path.stat().st_mode & 0o777 for path in tmp_path.glob("*.rec")] == [0o600]


def test_a_full_queue_drops_and_counts_and_never_waits(tmp_path, metrics):
    release = threading.Event()
    begun = threading.Event()

    def slow():
        begun.set()
        release.wait(10)
        return Header(FrameKind.SAMPLE, 0), b""

    writer = RecordWriter(tmp_path, "worker-0", metrics, keep_bytes=1 << 30, queue_bytes=25)
    assert writer.offer(10, slow)
    assert begun.wait(5)
    assert [writer.offer(10, one(group)) for group in (1, 2, 3, 4)] == [True, True, False, False]
    assert dropped(metrics, "queue") == 2
    release.set()
    writer.close()
    assert [group for group, _ in kept(tmp_path)] == [0, 1, 2]


def test_a_disk_that_fails_costs_records_and_is_tried_again_later(tmp_path, metrics, monkeypatch):
    now = [0.0]
    places = tmp_path / "records"
    places.write_text("a file where the folder should be")
    writer = RecordWriter(places, "worker-0", metrics, keep_bytes=1 << 30, clock=lambda: now[0])
    writer._append([b"lost"])
    places.unlink()
    writer._append([b"lost, too: it is not a minute later"])
    assert dropped(metrics, "disk") == 2
    now[0] = writer_module.RETRY_S + 1
    writer.offer(1, one(7))
    writer.close()
    assert [group for group, _ in kept(places)] == [7]


def test_a_full_disk_costs_records_and_never_the_caller(tmp_path, metrics, monkeypatch):
    opened = os.open

    def full(path, *arguments, **more):
        opened_file = opened(path, *arguments, **more)
        if not str(path).endswith(".rec"):
            return opened_file
        os.close(opened_file)
        return opened("/dev/full", os.O_WRONLY)  # every write: no space left on device

    writer = RecordWriter(tmp_path, "worker-0", metrics, keep_bytes=1 << 30)
    with monkeypatch.context() as disk:
        disk.setattr(os, "open", full)
        assert all(writer.offer(1, one(group)) for group in range(50))
        writer.close()
    assert dropped(metrics, "disk") == 50
    assert kept(tmp_path) == []
    later = RecordWriter(tmp_path, "worker-0", metrics, keep_bytes=1 << 30)
    later.offer(1, one(7))
    later.close()
    assert [group for group, _ in kept(tmp_path)] == [7]


def test_a_record_that_cant_be_made_costs_itself_only(tmp_path, metrics):
    def broken():
        raise ValueError("no")

    writer = RecordWriter(tmp_path, "worker-0", metrics, keep_bytes=1 << 30)
    writer.offer(1, broken)
    writer.offer(1, one(2))
    writer.close()
    assert [group for group, _ in kept(tmp_path)] == [2]
    assert dropped(metrics, "bug") == 1


def test_the_oldest_segments_go_when_all_of_them_pass_what_is_kept(tmp_path, metrics):
    other = tmp_path / "worker-1-0-000000.rec"
    other.write_bytes(b"of another worker")
    writer = RecordWriter(tmp_path, "worker-0", metrics, keep_bytes=20_000)
    for group in range(400):
        writer.offer(1, one(group, bytes(range(256)) * 2))
    writer.close()
    mine = sorted(tmp_path.glob("worker-0-*.rec"))
    assert sum(path.stat().st_size for path in mine) <= 20_000
    groups = [group for group, _ in kept(tmp_path)]
    assert groups[-1] == 399
    assert groups[0] > 0
    assert other.exists()


def test_nothing_is_taken_after_the_end(tmp_path, metrics):
    writer = RecordWriter(tmp_path, "worker-0", metrics, keep_bytes=1 << 30)
    writer.close()
    assert not writer.offer(1, one(1))
