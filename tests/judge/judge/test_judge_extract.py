"""Programs of completions: the last block in the right language, whatever a model writes around it."""

from __future__ import annotations

import time

import pytest
from areal_judge.judge.extract import PROGRAM_CHARS, program_of
from areal_judge.judge.languages.table import LANGUAGES
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("Here:\n```py\nx = 1\n```\nDone.", "x = 1\n"),
        ("```python3\nx = 1\n```", "x = 1\n"),
        ("```Python\nx = 1\n```", "x = 1\n"),
        ("``` python title=a.py\nx = 1\n```", "x = 1\n"),
        ("```{.python .numberLines}\nx = 1\n```", "x = 1\n"),
        ("~~~python\nx = 1\n~~~", "x = 1\n"),
        ("```python\nx = 1\n```\nno:\n```python\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\nprints\n```\n1\n```", "x = 1\n"),  # tagged before untagged
        ("```\nx = 1\n```\n```\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n", "x = 1\n\n"),  # never closed
        ("```python\nx = 1", "x = 1\n"),
        ("<think>```python\nx = 1\n```</think>\n```python\nx = 2\n```", "x = 2\n"),
        ("<think>a</think><think>b</think>x = 3", "x = 3"),
        ("x = 1\nprint(x)", "x = 1\nprint(x)"),
        ("\n\nx = 1\n\n", "x = 1"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        ("1. so\n   ```python\n   if x:\n       y()\n   ```", "if x:\n    y()\n"),
        ("```python\r\nx = 1\r\n```\r\n", "x = 1\n"),
        ("```cpp\nint x;\n```\n```python\nx = 1\n```\n```bash\nls\n```", "x = 1\n"),
        ("```python\nx = 1\n```\n```python\n\n```", "x = 1\n"),  # an empty block is none
    ],
)
def test_the_program_is_found(completion: str, program: str) -> None:
    assert program_of(completion, "python") == program


@pytest.mark.parametrize(
    "completion",
    [
        "", " \n\t", "<think>```python\nx = 1\n```</think>", "```cpp\nint x;\n```", "```python\n```", "```",
        "x" * (PROGRAM_CHARS + 1),
    ],
)  # fmt: skip
def test_nothing_is_no_program(completion: str) -> None:
    assert program_of(completion, "python") is None


@pytest.mark.parametrize(("language", "tag"), [(name, tag) for name, one in LANGUAGES.items() for tag in one.fences])
def test_every_alias_names_its_language(language: str, tag: str) -> None:
    completion = f"```{tag}\nright\n```\n```text\nwrong\n```"
    assert program_of(completion, language) == "right\n"


def test_an_unknown_language_is_its_own_tag() -> None:
    assert program_of("```lean\nright\n```\n```\nwrong\n```", "lean") == "right\n"


@given(st.text(alphabet="`~ pyx\n<>think/", max_size=200))
def test_any_text_has_an_answer(completion: str) -> None:
    found = program_of(completion, "python")
    assert found is None or found.strip()


@given(st.text(alphabet=st.characters(blacklist_characters="`~\r<", blacklist_categories=["Cs"]), max_size=200))
def test_a_fenced_program_comes_back_unchanged(source: str) -> None:
    found = program_of(f"Sure!\n```python\n{source}\n```\nThat is all.", "python")
    assert found == (f"{source}\n" if source.strip() else None)


def test_hostile_text_is_read_in_linear_time() -> None:
    began = time.process_time()
    for text in ("```\n" * 250_000, "`" * 1_000_000, " " * 1_000_000, "```python\n" * 90_000, "</think>" * 120_000):
        program_of(text, "python")
    assert time.process_time() - began < 5.0
