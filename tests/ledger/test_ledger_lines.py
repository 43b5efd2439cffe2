"""Lines come back as they were written, damage has a number, and a writer that failed writes no more."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest
import xxhash
from areal.errors import InfraError
from areal.ledger.lines import LineWriter, RecordLine, pack, read_lines, unpack


def written(path: Path, *records: dict[str, int]) -> list[bytes]:
    writer = LineWriter(path)
    writer.append(records)
    writer.close()
    return path.read_bytes().splitlines(keepends=True)


def test_lines_are_numbered_from_one_and_a_damaged_one_keeps_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = written(path, {"a": 1}, {"a": 2}, {"a": 3})
    path.write_bytes(lines[0] + lines[1].replace(b"2", b"7", 1) + lines[2])
    assert [(line.number, line.record and line.record["a"]) for line in read_lines(path)] == [(1, 1), (2, None), (3, 3)]


@pytest.mark.parametrize("missing", [1, 2])
def test_a_last_line_is_whole_without_its_newline_and_damaged_without_its_last_byte(
    tmp_path: Path, missing: int
) -> None:
    path = tmp_path / "a.jsonl"
    lines = written(path, {"a": 1}, {"a": 2})
    path.write_bytes(b"".join(lines)[:-missing])
    first, last = read_lines(path)
    assert (first.record or {})["a"] == 1
    assert (last.number, last.record is not None) == (2, missing == 1)


def test_a_file_that_ends_whole_has_no_line_more(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written(path, {"a": 1})
    assert len(read_lines(path)) == 1
    path.write_bytes(b"\n" + path.read_bytes())
    assert [line.number for line in read_lines(path)] == [2], "an empty line is none, and keeps its number"
    assert read_lines(tmp_path / "none.jsonl") == []


def test_a_writer_after_a_torn_line_begins_on_a_fresh_one_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written(path, {"a": 1}, {"a": 2})
    path.write_bytes(path.read_bytes()[:-5])
    writer = LineWriter(path)
    writer.append([{"a": 3}])
    writer.append([{"a": 4}])
    writer.close()
    assert [line.record and line.record["a"] for line in read_lines(path)] == [1, None, 3, 4]
    assert path.read_bytes().count(b"\n") == 4


def test_a_checksum_that_is_right_makes_no_record_of_what_is_none() -> None:
    sealed = b'{nothing,"xxh3":"%016x"}' % xxhash.xxh3_64_intdigest(b"{nothing}")
    assert unpack(sealed) is None
    assert unpack(pack({"a": 1})[:-1]) == {"a": 1}
    assert pack({"a": 1}).endswith(b"}\n")
    assert orjson.loads(pack({"a": 1}))["a"] == 1


def test_a_line_is_on_disk_when_append_returns_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut leaves is what was synced last."""
    path, on_disk, sync = tmp_path / "a.jsonl", [b""], os.fsync

    def synced(descriptor: int) -> None:
        sync(descriptor)
        on_disk[0] = path.read_bytes()

    writer = LineWriter(path)
    monkeypatch.setattr(os, "fsync", synced)
    writer.append([{"a": 1}], sync=False)
    assert on_disk == [b""]
    writer.append([{"a": 2}])
    assert on_disk[0].count(b"\n") == 2
    writer.close()


def test_a_write_that_stopped_half_way_is_an_error_and_the_last_thing_the_writer_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "a.jsonl", os.write
    writer = LineWriter(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:-3]))
        with pytest.raises(InfraError, match="only a part was written"):
            writer.append([{"a": 1}])
    with pytest.raises(InfraError, match="failed before"):
        writer.append([{"a": 2}])
    writer.close()
    assert [line.record for line in read_lines(path)] == [None]


def test_a_closed_writer_writes_nothing_and_closes_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    writer = LineWriter(path)
    writer.append([{"a": 1}])
    writer.close()
    writer.close()
    with pytest.raises(InfraError, match="failed before"):
        writer.append([{"a": 2}])
    assert read_lines(path) == [RecordLine(1, {"a": 1})]


def test_a_file_that_can_not_be_opened_is_the_volumes_fault(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(InfraError, match="can't open"):
        LineWriter(tmp_path / "a.jsonl")
