"""The journal holds what was acknowledged, however its writer died."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.errors import BugError, DataError
from areal.ledger import journal as journal_module
from areal.ledger.fences import allocate, newest
from areal.ledger.journal import Journal, Tombstone, TrainerStart, read_journal
from areal.ledger.lines import pack, unpack
from hypothesis import given
from hypothesis import strategies as st


def test_what_was_appended_is_replayed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    assert journal.start(3).tombstones == {}
    journal.append_tombstones([Tombstone(5, "filtered", 3, "all 1.0")])
    journal.append_trainer(9, 1)
    journal.append_batch(0, [4, 7])
    journal.append_short(6, [0, 2])
    state = Journal(tmp_path / "j.jsonl").replay()
    assert (state.fence, state.trainer, state.short) == (3, TrainerStart(9, 1), {6: (0, 2)})
    assert state.batches == [(4, 7)]
    assert (state.tombstones[5].reason, state.tombstones[5].detail) == ("filtered", "all 1.0")


@given(st.data())
def test_a_torn_tail_loses_only_what_was_being_written(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j.jsonl"
    first = Journal(path)
    first.start(1)
    for group in range(4):
        first.append_tombstones([Tombstone(group, "filtered", 1)])
    first.close()
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n") + (whole[cut : cut + 1] == b"\n")  # a line that misses only its newline is whole
    second = Journal(path)
    state = second.start(2)
    assert set(state.tombstones) == set(range(max(0, kept - 1)))
    assert not state.damaged
    second.append_tombstones([Tombstone(9, "rejected", 2)])
    assert set(Journal(path).replay().tombstones) == {*range(max(0, kept - 1)), 9}


def test_damage_that_no_crash_explains_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    journal.start(1)
    journal.append_tombstones([Tombstone(1, "filtered", 1)])
    journal.append_tombstones([Tombstone(2, "filtered", 1)])
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b'"group":1', b'"group":7')
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match="line 2"):
        Journal(path).replay()
    assert read_journal(path).damaged == [2]


def test_an_old_controller_writes_in_vain(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    old, new = Journal(path), Journal(path)
    old.start(1)
    old.append_tombstones([Tombstone(1, "filtered", 1)])
    assert set(new.start(2).tombstones) == {1}
    old.append_tombstones([Tombstone(2, "filtered", 1)])
    old.append_trainer(1, 9)
    old.append_batch(0, [4, 5])
    new.append_tombstones([Tombstone(3, "filtered", 2)])
    new.append_batch(0, [5, 6])
    state = read_journal(path)
    assert (set(state.tombstones), state.trainer, state.batches) == ({1, 3}, None, [(5, 6)])


def test_the_start_of_an_old_trainer_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    journal.start(1)
    journal.append_trainer(2, 1)
    journal.append_trainer(1, 5)
    assert journal.replay().trainer == TrainerStart(2, 1)
    journal.append_trainer(3, 0)
    assert journal.replay().trainer == TrainerStart(3, 0)


def test_the_first_batch_of_a_step_stands(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    journal.start(1)
    journal.append_batch(0, [0, 2])
    journal.append_batch(1, [1, 5], [(1, 1, 2)])
    journal.append_batch(0, [3, 4])
    state = journal.replay()
    assert state.batches == [(0, 2), (1, 5)]
    assert len(state.pools) == 1


def test_the_first_reason_of_a_group_stands(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    journal.start(1)
    journal.append_tombstones([Tombstone(1, "filtered", 1)])
    journal.append_tombstones([Tombstone(1, "ended", 1)])
    assert journal.replay().tombstones[1].reason == "filtered"


def test_an_entry_before_start_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(BugError, match="start"):
        Journal(tmp_path / "j.jsonl").append_trainer(1, 1)
    assert not (tmp_path / "j.jsonl").exists()
    assert journal_module.read_journal(tmp_path / "j.jsonl").fence == 0


@given(st.dictionaries(st.text(min_size=1), st.text() | st.integers(-(2**53), 2**53), min_size=1), st.data())
def test_a_flipped_bit_in_a_line_is_seen(record: dict[str, str | int], data: st.DataObject) -> None:
    line = bytearray(pack(record)[:-1])
    assert unpack(bytes(line)) == record
    line[data.draw(st.integers(0, len(line) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert unpack(bytes(line)) is None


def test_fences_grow_and_are_never_given_twice(tmp_path: Path) -> None:
    given_out = [allocate(tmp_path / "fences", "trainer") for _ in range(3)]
    assert given_out == [1, 2, 3]
    assert allocate(tmp_path / "fences", "controller") == 1
    (tmp_path / "fences" / "trainer-00000009").touch()
    assert allocate(tmp_path / "fences", "trainer") == 10
    assert newest(tmp_path / "fences", "trainer") == 10


def test_two_that_start_at_once_get_different_fences(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        fences = list(pool.map(lambda _: allocate(tmp_path, "controller"), range(40)))
    assert sorted(fences) == list(range(1, 41))
