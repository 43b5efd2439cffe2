"""Counts of how episodes ended, as they are kept for the next controller and for the pages."""

from __future__ import annotations

from areal.record.episode_ends import infra_share, read_ends, write_ends


def test_the_counts_of_the_newest_controller_are_read(tmp_path):
    assert read_ends(tmp_path / "none") == {}
    write_ends(tmp_path, 9, {"complete": 1})
    write_ends(tmp_path, 10, {"complete": 97, "infra": 3})
    write_ends(tmp_path, 2, {"complete": 2})
    assert read_ends(tmp_path) == {"complete": 97, "infra": 3}


def test_a_damaged_file_leaves_those_of_the_controller_before(tmp_path):
    write_ends(tmp_path, 1, {"complete": 5})
    for damage in (b"", b"[1]", b'{"complete": null}', b"\xff"):
        (tmp_path / "episode-ends.f2.json").write_bytes(damage)
        assert read_ends(tmp_path) == {"complete": 5}


def test_the_share_is_of_all_ended_episodes():
    assert infra_share({}) is None
    assert infra_share({"complete": 8}) == 0.0
    assert infra_share({"complete": 96, "masked": 1, "exception": 1, "infra": 2}) == 0.02
