"""Durable files: replaced whole, installed whole, torn tails told apart."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from areal import files


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "state.json"
    files.write_atomically(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="space"):
        files.write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    files.write_atomically(path, b"newer")  # what the failed one left is in nobody's way
    assert path.read_bytes() == b"newer"
    assert list(path.parent.iterdir()) == [path]


def test_a_private_file_is_private_even_in_place_of_an_open_one(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"open")
    path.chmod(0o644)
    files.write_atomically(path, b"secret", private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_durable_is_synced_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    files.write_atomically(tmp_path / "a", b"1")
    assert synced == [str(tmp_path / "a.part"), str(tmp_path)]
    synced.clear()
    files.write_atomically(tmp_path / "b", b"1", durable=False)
    assert synced == []


def test_an_installed_directory_replaces_an_older_one(tmp_path: Path) -> None:
    for content in ("old", "new"):
        staging = tmp_path / "staging"
        staging.mkdir()
        (staging / "file").write_text(content)
        files.install_directory(staging, tmp_path / "target")
    assert (tmp_path / "target" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_torn_last_line_is_told_apart_and_ended(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lines.jsonl"
    assert files.read_lines(path) == files.LinesOfFile([])
    assert files.append_lines(path, [b"1", b"2"]) == 4
    with path.open("ab") as file:
        file.write(b'{"cut')
    assert files.read_lines(path) == files.LinesOfFile([b"1", b"2"], b'{"cut')
    assert files.append_lines(path, [b"3"]) == len(path.read_bytes())
    assert files.read_lines(path) == files.LinesOfFile([b"1", b"2", b'{"cut', b"3"])
