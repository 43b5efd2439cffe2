"""T10: what is streamed is what is told at once, whatever the pieces in which tokens come."""

from __future__ import annotations

from areal.gateway.reading import AnswerReader, Manner, read
from hypothesis import given
from hypothesis import strategies as st


def pieces_of(reader: AnswerReader, ids: list[int], sizes: list[int]) -> list[str]:
    told, at = [], 0
    for size in [*sizes, len(ids)]:
        told += [part.text for part in reader.feed(ids[at : at + size])]
        at += size
    return told + [part.text for part in reader.end()]


SIZES = st.lists(st.integers(0, 3), max_size=8)


@given(st.lists(st.integers(0, 268), max_size=12), SIZES)
def test_t10_deltas_are_the_decoded_answer_for_any_ids(tokenizer, ids, sizes):
    assert "".join(pieces_of(AnswerReader(tokenizer), ids, sizes)) == tokenizer.decode(ids)
    assert read(AnswerReader(tokenizer), ids).text == tokenizer.decode(ids)


@given(st.text("abth\u00e4\u20ac\U0001f600", max_size=10), SIZES)
def test_t10_no_character_comes_in_halves(tokenizer, text, sizes):
    told = pieces_of(AnswerReader(tokenizer), tokenizer.encode(text, special=False).tolist(), sizes)
    assert "".join(told) == text
    assert "\ufffd" not in "".join(told)


@given(st.text("abc", max_size=12), st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=2), SIZES)
def test_t10_nothing_of_a_stop_string_is_told(tokenizer, text, stops, sizes):
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    expected = text[: min(places)] if places else text
    ids = tokenizer.encode(text, special=False).tolist()
    assert "".join(pieces_of(AnswerReader(tokenizer, Manner(stops)), ids, sizes)) == expected
