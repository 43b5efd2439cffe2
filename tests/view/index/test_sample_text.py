"""Text of samples: what is found, what is marked, what a list shows of a long one."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest
from areal_view.index.sample_text import TOKENIZER, fragment, match_of, searchable, shortened, terms_of, texts_of
from hypothesis import given
from hypothesis import strategies as st
from support.recorded_run import made_sample, with_text


def found(text: str, query: str) -> bool:
    db = sqlite3.connect(":memory:")
    db.execute(f"CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='{TOKENIZER}')")
    db.execute("INSERT INTO words(rowid, text) VALUES (1, ?)", (searchable(text),))
    return bool(db.execute("SELECT rowid FROM words WHERE words MATCH ?", (match_of(query),)).fetchall())


@pytest.mark.parametrize(
    ("text", "query", "marked"),
    [
        ("Natalia sold 48/2 = <<48/2=24>>24 clips", "sold clips", ["sold", "clips"]),
        ("Natalia sold 48/2 clips", '"48/2 clips"', ["48/2 clips"]),
        ("the Café of Élodie", "cafe elodie", ["Café", "Élodie"]),
        ("答案是四十二。", "四十", ["四十"]),
        ("คำตอบคือสี่สิบสอง", "คำตอบ", ["คำตอบ"]),
        ("الإجابة هي 42", "هي", ["هي"]),
        ("התשובה היא 42", '"היא 42"', ["היא 42"]),
        ("a.b_c(don't)", "c", ["c"]),
        ("<script>alert(1)</script>", '"alert(1)"', ["alert(1"]),
        ("NEAR(a b) OR col:x*", "NEAR OR col", ["NEAR", "OR", "col"]),
        ('say "hi"', "say", ["say"]),
    ],
)
def test_words_and_phrases_are_found_and_marked(text: str, query: str, marked: list[str]):
    assert found(text, query)
    parts = fragment(text.encode(), query)
    assert [words for words, hit in parts if hit] == marked
    assert "".join(words for words, _ in parts) == text


@pytest.mark.parametrize(
    ("text", "query"), [("sold clips", '"clips sold"'), ("sold", "sol"), ("解答", "答解"), ("red", "red blue")]
)
def test_what_is_not_there_is_not_found(text: str, query: str):
    assert not found(text, query)


def test_a_query_without_a_word_has_no_terms():
    assert terms_of('+ "" "!" *') == {}
    assert match_of("") == ""


@given(st.text(max_size=60), st.text(max_size=30))
def test_no_text_and_no_query_is_an_error(text: str, query: str):
    if terms_of(query):
        found(text, query)
    parts = fragment(text, query)
    assert not any("\x00" in words or "\u202e" in words for words, _ in parts)


@given(st.text(st.sampled_from("aZé Ж中คำ0_-.'🙂שر\n"), min_size=1, max_size=60))
def test_a_text_is_found_by_its_own_words(text: str):
    own = f'"{text.replace(chr(34), " ")}"'
    assert not terms_of(own) or found(text, own)


def test_a_long_text_keeps_its_beginning_and_its_end():
    text = ("begin " + "x" * 100_000 + " #### 42").encode()
    shown = shortened(text, 300)
    assert shown.startswith("begin ")
    assert shown.endswith(" #### 42")
    assert len(shown) < 320
    assert shortened(b"short \xff\x1b") == "short ⟨ff⟩␛"
    assert shortened("é" * 200_000, 90).count("é") == 90


def test_a_fragment_of_a_long_text_is_short():
    text = "filler " * 20_000 + "needle " + "filler " * 20_000
    parts = fragment(text, "needle")
    assert [words for words, hit in parts if hit] == ["needle"]
    assert sum(len(words) for words, _ in parts) < 400


def test_question_and_answer_part_where_sampling_began():
    made = with_text(made_sample(1, 0), "What is 6·7?", "42")
    assert texts_of(made) == ("What is 6·7?".encode(), b"42")
    del made.sample.sequences[0].spans[:]
    assert texts_of(made) == ("What is 6·7?42".encode(), b"")
    made.texts[0].token_ends = np.array([2**32 - 1], "<u4").tobytes()
    made.sample.sequences[0].spans.add(start=2**31, end=2**31)
    assert texts_of(made)[1] == b""
