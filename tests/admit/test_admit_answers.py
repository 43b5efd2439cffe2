"""Expected answers are looked at before a run: bad ones are named with their place, and none can stall the look."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import orjson
import pytest
from areal.admit.answers import GoldCount, Rows, check_golds, check_snapshot
from areal.data import JsonlSource, prepare
from areal.errors import DataError
from reward.reward_math_pairs import DIFFERENT, EQUAL

pytest.importorskip("math_verify")


def rows_of(answers: Iterable[object]) -> Rows:
    return [(f"rows.jsonl:{number}", {"answer": answer}) for number, answer in enumerate(answers, start=1)]


def test_numbers_and_letters_need_no_reading() -> None:
    assert check_golds(rows_of([42, "-7", "3.25", 0.5, "B", r"\boxed{12}", "6*7=42 #### 42"]), "answer") == GoldCount(
        7, 0
    )


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("", "is empty"), (" ", "is empty"), (None, 'no "answer"'), (True, "is a bool"), ([1, 2], "is a list"),
        ({"a": 1}, "is a dict"), (float("nan"), "is nan"), ("9^{9^{9^{9}}}", "a tower of powers"),
        ("1" * 500, "more than 400 digits"), ("x+" * 300 + "x", "200 tokens"),
    ],
)  # fmt: skip
def test_what_text_alone_refuses_names_its_row(answer: object, says: str) -> None:
    with pytest.raises(DataError) as caught:
        check_golds(rows_of(["1", answer, "3"]), "answer")
    assert caught.value.message.startswith("rows.jsonl:2: ")
    assert says in caught.value.message
    assert caught.value.fix


@pytest.mark.component
def test_good_answers_are_read_once_each() -> None:
    golds = [gold for gold, _ in [*EQUAL, *DIFFERENT]]
    looked = check_golds(rows_of(golds), "answer", budget_s=120.0)
    assert looked.rows == len(golds)
    assert 0 < looked.read <= len(set(golds))
    assert looked.left == 0


@pytest.mark.component
def test_an_unreadable_answer_stops_the_run_with_its_place_and_what_to_do() -> None:
    with pytest.raises(DataError) as caught:
        check_golds(rows_of(["1/2", r"p \rightarrow q", r"\sqrt{2}", "]]}{"]), "answer")
    assert caught.value.message == (
        r"rows.jsonl:2: the expected answer 'p \\rightarrow q' in " + '"answer" can\'t be compared as mathematics '
        "(math-verify can't read it), and 1 more answers"
    )
    assert "exact" in caught.value.fix


@pytest.mark.component
def test_answers_that_never_end_are_killed_within_the_budget() -> None:
    poison = [rf"\sqrt{{10^{{9999}}+{n}}}+x" for n in range(20)]  # seconds each, unless it equals itself by its letters
    looked = check_golds(rows_of([*poison, "1/2"]), "answer", budget_s=3.0)
    assert looked.read + looked.left == 21


@pytest.mark.component
async def test_it_can_be_asked_inside_an_event_loop() -> None:
    await asyncio.sleep(0)
    assert check_golds(rows_of(["1/2"]), "answer").read == 1


@pytest.mark.component
def test_a_prepared_dataset_is_named_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_bytes(b"\n".join(orjson.dumps({"prompt": "?", "answer": answer}) for answer in ("1/2", r"a \to b")))
    prepare(JsonlSource(file), tmp_path / "made")
    with pytest.raises(DataError, match=r"train\.jsonl, row 2: "):
        check_snapshot(tmp_path / "made", "answer")
