"""Text made visible."""

from __future__ import annotations

import unicodedata

from areal_view.index.sample_text import visible
from hypothesis import given
from hypothesis import strategies as st


def test_plain_text_stays_as_it_is():
    text = "def f(x):\n\treturn x  # größer 数 🙂"
    assert visible(text) == text == visible(text.encode())


def test_what_hides_is_shown():
    assert visible(b"\x1b[1m\x00\x7f") == "␛[1m␀␡"
    assert visible("a\u202eb\u200bc") == "a⟨U+202E⟩b⟨U+200B⟩c"
    assert visible(b"a\xffb\xc3") == "a⟨ff⟩b⟨c3⟩"


@given(st.binary(max_size=200))
def test_no_byte_hides(raw):
    shown = visible(raw)
    assert all(letter in "\n\t" or unicodedata.category(letter) not in ("Cf", "Cs", "Co") for letter in shown)
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in shown)
