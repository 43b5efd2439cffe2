"""`areal prepare`'s core: snapshots are whole, digested, reused when nothing changed, and refuse bad data by line."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest
from areal.data import JsonlSource, RecipeSource, Snapshot, prepare
from areal.errors import ConfigError, DataError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

ROWS = [{"prompt": f"{n}=", "answer": str(n)} for n in range(50)]


def write(path: Path, rows: list[dict[str, object]]) -> JsonlSource:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return JsonlSource(path)


def test_a_snapshot_gives_back_the_rows_in_order(tmp_path: Path) -> None:
    snapshot = prepare(write(tmp_path / "a.jsonl", ROWS), tmp_path / "out", required=("prompt", "answer"))
    assert len(snapshot) == 50
    assert list(snapshot) == ROWS
    assert snapshot.row_json(7) == orjson.dumps(ROWS[7])
    assert snapshot.columns == {"prompt": "string", "answer": "string"}
    snapshot.verify()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50), deadline=None)
@given(rows=st.lists(st.dictionaries(st.text(), json_values, max_size=4), min_size=1, max_size=8))
def test_any_json_survives(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    snapshot = prepare(write(tmp_path / "any.jsonl", rows), tmp_path / "any")
    assert [snapshot.row(index) for index in range(len(snapshot))] == rows


def test_the_digest_names_the_rows_not_the_place(tmp_path: Path) -> None:
    one = prepare(write(tmp_path / "a.jsonl", ROWS), tmp_path / "one")
    two = prepare(write(tmp_path / "b.jsonl", ROWS), tmp_path / "two")
    other = prepare(write(tmp_path / "c.jsonl", ROWS[::-1]), tmp_path / "three")
    assert one.digest == two.digest
    assert one.digest != other.digest


def test_an_unchanged_source_is_not_read_again_and_a_changed_one_is(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", ROWS)
    prepare(source, tmp_path / "out", required=("answer",))
    first = (tmp_path / "out" / "rows.jsonl").stat().st_ino
    os.utime(source.path, (1, 1))
    prepare(source, tmp_path / "out", required=("answer",))
    assert (tmp_path / "out" / "rows.jsonl").stat().st_ino == first
    write(source.path, ROWS[:3])
    assert len(prepare(source, tmp_path / "out")) == 3


def test_an_unchanged_source_is_still_checked_for_a_column_that_was_not_asked_before(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [*ROWS, {"prompt": "no answer"}])
    prepare(source, tmp_path / "out", required=("prompt",))
    with pytest.raises(DataError, match=r'a\.jsonl:51: column "answer" is missing'):
        prepare(source, tmp_path / "out", required=("prompt", "answer"))


def test_a_column_of_nulls_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    """AGIEval's rows have both `answer` and `label`, and one of them is null."""
    source = write(tmp_path / "a.jsonl", [{"prompt": "1", "answer": None, "reward_model": {"ground_truth": "2"}}])
    with pytest.raises(DataError, match='column "answer" is null') as raised:
        prepare(source, tmp_path / "out", required=("prompt", "answer"))
    assert raised.value.fix.startswith("reward.answerField: reward_model.ground_truth, if that is it; ")


def test_a_missing_column_names_file_line_and_what_was_found(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [{"prompt": "1", "answer": "1"}, {"prompt": "2", "solution": "2"}])
    with pytest.raises(DataError) as raised:
        prepare(source, tmp_path / "out", required=("prompt", "answer"))
    assert 'a.jsonl:2: column "answer" is missing (found "prompt", "solution")' in raised.value.message
    assert raised.value.fix.startswith("reward.answerField: solution, if that is it; ")
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_any_one_of_several_columns_is_enough(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [{"question": "1"}, {"prompt": "2"}])
    assert len(prepare(source, tmp_path / "out", required=(("prompt", "question"),))) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"prompt": "1"}\n{"prompt": \n', "a.jsonl:2: not JSON"),
        (b'{"prompt": "\xff"}\n', "a.jsonl:1: not JSON"),
        (b'[{"prompt": "1"}]\n', "a.jsonl:1: a row is a JSON object, not list"),
        (b'{"prompt": NaN}\n', "a.jsonl:1: not JSON"),
        (b"\n\n", "has no rows"),
        (b"", "has no rows"),
    ],
)
def test_bad_files_are_refused_by_line_and_leave_nothing(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(text)
    with pytest.raises(DataError, match=message) as raised:
        prepare(JsonlSource(tmp_path / "a.jsonl"), tmp_path / "out")
    assert raised.value.fix
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_failed_preparation_keeps_the_older_snapshot(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", ROWS)
    kept = prepare(source, tmp_path / "out").digest
    source.path.write_text("broken")
    with pytest.raises(DataError):
        prepare(source, tmp_path / "out")
    assert Snapshot(tmp_path / "out").digest == kept


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("x")
    with pytest.raises(DataError, match="holds no prepared dataset"):
        prepare(write(tmp_path / "a.jsonl", ROWS), tmp_path / "out")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "x"


def test_damage_is_noticed(tmp_path: Path) -> None:
    snapshot = prepare(write(tmp_path / "a.jsonl", ROWS), tmp_path / "out")
    rows = tmp_path / "out" / "rows.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b"49", b"50"))
    with pytest.raises(DataError, match="were changed"):
        Snapshot(tmp_path / "out").verify()
    snapshot.close()
    rows.write_bytes(b"short")
    with pytest.raises(DataError, match="disagree in size"):
        Snapshot(tmp_path / "out")


def test_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "1"}\r\n\n{"prompt": "2"}')
    assert list(prepare(JsonlSource(tmp_path / "a.jsonl"), tmp_path / "out")) == [{"prompt": "1"}, {"prompt": "2"}]


def test_a_recipe_makes_its_own_rows(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text('def dataset(split):\n    for n in range(3):\n        yield {"prompt": split, "n": (n, {n})}\n')
    rows = list(prepare(RecipeSource(recipe, "train"), tmp_path / "out", required=("prompt",)))
    assert rows == [{"prompt": "train", "n": [n, [n]]} for n in range(3)]


def test_an_error_in_a_recipe_names_its_line(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text("def dataset(split):\n    yield {'prompt': '1'}\n    yield {'prompt': 1 / 0}\n")
    with pytest.raises(DataError, match="ZeroDivisionError") as raised:
        prepare(RecipeSource(recipe, "train"), tmp_path / "out")
    assert 'recipe.py", line 3' in raised.value.message


def test_values_that_are_no_json_become_text_or_lists(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "from fractions import Fraction\nfrom decimal import Decimal\n"
        "def dataset(split):\n"
        "    yield {'prompt': 'a', 'f': Fraction(3, 4), 'd': Decimal('1.5'), 'big': 1 << 70, 's': {2, 1},\n"
        "           'edges': {(0, 1): [Fraction(1)]}, 'c': 1j}\n"
    )
    row = next(iter(prepare(RecipeSource(recipe, "train"), tmp_path / "out")))
    assert row == {
        "prompt": "a", "f": "3/4", "d": "1.5", "big": str(1 << 70), "s": [1, 2], "edges": {"(0, 1)": ["1"]}, "c": "1j"
    }  # fmt: skip


@pytest.mark.parametrize("place", ["file/below", "file"])
def test_a_place_that_can_t_be_made_is_the_users_to_choose(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    with pytest.raises(ConfigError, match="can't write the dataset") as refused:
        prepare(JsonlSource(tmp_path / "rows.jsonl"), tmp_path / place)
    assert refused.value.fix == "choose another directory"
