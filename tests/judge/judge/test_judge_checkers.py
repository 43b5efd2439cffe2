"""Checkers of printed output: what each accepts, and what it does not."""

import pytest
from areal_judge.judge.checkers import RULES, check
from areal_judge.judge.values import Checker
from hypothesis import given, settings
from hypothesis import strategies as st

TEXT = st.text(st.sampled_from("ab1.0 \n\t-e+naif"), max_size=30)


@pytest.mark.parametrize(
    ("name", "output", "expected", "right"),
    [
        ("exact", "a\n", "a\n", True),
        ("exact", "a", "a\n", False),
        ("rstrip_lines", "a  \nb\n\n\n", "a\nb", True),
        ("rstrip_lines", " a\nb", "a\nb", False),
        ("rstrip_lines", "a\n\nb", "a\nb", False),
        ("rstrip_lines", "a\r\nb\r\n", "a\nb\n", True),
        ("rstrip_lines", "a\rb\r", "a\nb\n", False),  # a carriage return alone ends no line
        ("lines_unordered", "a\rb", "b\na", False),
        ("last_line", "no\r42", "42", False),
        ("exact", "a\r\n", "a\n", False),
        ("tokens", "a\rb", "a b", True),
        ("tokens", " a\n\n b ", "a b", True),
        ("tokens", "a b c", "a b", False),
        ("tokens", "A b", "a b", False),
        ("tokens", "", "", True),
        ("tokens", "", "0", False),
        ("tokens", "1.0", "1", False),
        ("lines_unordered", "b\na\n", "a\nb", True),
        ("lines_unordered", "a\na\nb", "a\nb\nb", False),
        ("last_line", "thinking\n\n 42 \n\n", "42", True),
        ("last_line", "42\nno", "42", False),
        ("last_line", "", "42", False),
        ("lcb_decimal", "1.0 2\n3 ", "1 2.00\n3", True),
        ("lcb_decimal", "1.0000001", "1", False),
        ("lcb_decimal", "1\n2", "1 2", False),
        ("lcb_decimal", "YES", "Yes", False),
        ("lcb_decimal", "NaN", "nan", False),
        ("lcb_decimal", "sNaN", "1", False),
        ("lcb_decimal", "1_0", "10", False),
    ],
)
def test_rules(name: str, output: str, expected: str, right: bool) -> None:
    assert check(Checker(name=name), output.encode(), expected) is right


@pytest.mark.parametrize(
    ("output", "expected", "absolute", "relative", "right"),
    [
        ("0.333333 yes", "0.3333333333 yes", 1e-6, 0.0, True),
        ("0.33333 yes", "0.3333333333 yes", 1e-6, 0.0, False),
        ("0.000001", "0", 1e-6, 0.0, True),
        ("1000001", "1000000", 0.0, 1e-6, True),
        ("1000002", "1000000", 0.0, 1e-6, False),
        ("1000000000000000001", "1000000000000000000", 1e-9, 0.0, False),
        ("1", "1.0", 0.0, 0.0, True),
        ("nan", "1", 1e9, 1e9, False),
        ("1", "nan", 1e9, 1e9, False),
        ("nan", "nan", 1e9, 1e9, False),
        ("-NaN", "-NaN", 1e9, 1e9, False),
        ("inf", "1", 1e9, 1e9, False),
        ("1e99999", "1e99999", 0.0, 0.0, True),
        ("1e999999999", "1", 1e9, 1e9, False),
        ("yes", "no", 1e9, 1e9, False),
        ("1", "1 2", 1e9, 1e9, False),
        ("٣", "3", 1e9, 1e9, False),
        ("0x10", "16", 0.0, 0.0, False),
    ],
)
def test_numbers_may_differ_by_the_tolerance_only(
    output: str, expected: str, absolute: float, relative: float, right: bool
) -> None:
    checker = Checker(name="tokens_float", absolute=absolute, relative=relative)
    assert check(checker, output.encode(), expected) is right


def test_folding_case_is_asked_for() -> None:
    assert check(Checker(fold_case=True), b"YES no", "yes NO")
    assert not check(Checker(), b"YES no", "yes NO")


def test_bytes_that_are_no_text_equal_nothing() -> None:
    for name in RULES:
        assert not check(Checker(name=name), b"\xff\xfe", "\ufffd\ufffd")


def test_an_unknown_rule_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        check(Checker(name="vibes"), b"", "")


@settings(deadline=None)
@given(st.sampled_from(sorted(RULES)), st.text(st.sampled_from("ab1.0 \n\t-e+"), max_size=30))
def test_every_rule_accepts_the_expected_text_itself(name: str, text: str) -> None:
    assert check(Checker(name=name), text.encode(), text)


@settings(deadline=None)
@given(st.sampled_from(sorted(RULES)), TEXT, TEXT)
def test_what_is_exact_is_right_for_all_and_rules_are_symmetric(name: str, a: str, b: str) -> None:
    checker = Checker(name=name)
    assert check(checker, a.encode(), b) == check(checker, b.encode(), a)


@settings(deadline=None)
@given(TEXT, TEXT)
def test_stricter_rules_accept_less(a: str, b: str) -> None:
    def right(name: str) -> bool:
        return check(Checker(name=name), a.encode(), b)

    assert not right("exact") or right("rstrip_lines")
    assert not right("rstrip_lines") or right("tokens")
    assert not right("rstrip_lines") or right("lines_unordered")
