"""The staging directory: found again and emptied, private, and never what somebody else put there."""

from __future__ import annotations

import os
from pathlib import Path

from areal.weights.stage import own_directory


def test_what_a_killed_server_left_is_gone_at_its_next_start(tmp_path: Path) -> None:
    first = own_directory("/runs/one", "generation-0", tmp_path)
    (first / "copy").mkdir()
    (first / "copy" / "model.safetensors").write_bytes(b"weights")
    (first / "stray").write_bytes(b"")
    assert own_directory("/runs/one", "generation-0", tmp_path) == first
    assert list(first.iterdir()) == []
    assert list(tmp_path.iterdir()) == [first]


def test_runs_and_servers_have_directories_of_their_own_that_only_their_user_enters(tmp_path: Path) -> None:
    pairs = [("/runs/one", "generation-0"), ("/runs/one", "generation-1"), ("/runs/two", "generation-0")]
    made = [own_directory(run, server, tmp_path) for run, server in pairs]
    assert len(set(made)) == 3
    made[0].chmod(0o755)
    again = own_directory(*pairs[0], tmp_path)
    assert {path.stat().st_mode & 0o777 for path in (again, *made)} == {0o700}


def test_a_link_at_its_name_is_not_followed(tmp_path: Path) -> None:
    path = own_directory("/runs/one", "generation-0", tmp_path)
    path.rmdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"kept")
    path.symlink_to(tmp_path / "precious")
    other = own_directory("/runs/one", "generation-0", tmp_path)
    assert other not in (path, tmp_path / "precious")
    assert other.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "precious" / "file").read_bytes() == b"kept"


def test_a_link_inside_it_goes_and_its_target_stays(tmp_path: Path) -> None:
    path = own_directory("/runs/one", "generation-0", tmp_path)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"kept")
    (path / "link").symlink_to(tmp_path / "precious")
    assert list(own_directory("/runs/one", "generation-0", tmp_path).iterdir()) == []
    assert (tmp_path / "precious" / "file").read_bytes() == b"kept"


def test_another_users_directory_is_left_alone(tmp_path: Path, monkeypatch) -> None:
    path = own_directory("/runs/one", "generation-0", tmp_path)
    (path / "theirs").write_bytes(b"kept")
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    squatted = tmp_path / path.name.replace(f"-{owner}-", f"-{owner + 1}-")
    path.rename(squatted)
    other = own_directory("/runs/one", "generation-0", tmp_path)
    assert other != squatted
    assert list(other.iterdir()) == []
    assert (squatted / "theirs").read_bytes() == b"kept"
