"""Program extraction: the last fenced block of a completion in the right language.

Pure text work in linear time. Reasoning (up to the last `</think>`) is no answer. A fence that never closes takes the
rest; a fence in another language is no program; a completion without any fence is a program as a whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from areal_judge.judge.languages.table import LANGUAGES

TAIL_CHARS = 1_000_000  # an answer stands at the end
PROGRAM_CHARS = 256_000


@dataclass(frozen=True)
class FencedBlock:
    """A fenced block. `tag` is the first word after the fence, in lower case."""

    tag: str
    source: str


def program_of(completion: str, language: str = "python") -> str | None:
    """The program of a completion; None when there is none, or it is longer than any program.

    The last block tagged with the language; else the last untagged one; else, without any fence, the whole text.
    """
    answer = completion[-TAIL_CHARS:].rpartition("</think>")[2]
    blocks = [block for block in _blocks(answer) if block.source.strip()]
    tags = LANGUAGES[language].fences if language in LANGUAGES else (language,)
    for wanted in (tags, ("",)):
        for block in reversed(blocks):
            if block.tag in wanted:
                return _bounded(block.source)
    if blocks or any(_fence(line) is not None for line in answer.split("\n")):
        return None
    return _bounded(answer.strip("\n")) if answer.strip() else None


def _bounded(source: str) -> str | None:
    return source if len(source) <= PROGRAM_CHARS else None


def _blocks(text: str) -> Iterator[FencedBlock]:
    opened: tuple[str, str, int] | None = None  # fence, tag, indent
    lines: list[str] = []
    for line in text.split("\n"):
        mark = _fence(line)
        if opened is None:
            if mark is not None:
                fence, info, indent = mark
                opened, lines = (fence, _tag(info), indent), []
        elif mark is not None and mark[0].startswith(opened[0]) and not mark[1]:
            yield FencedBlock(opened[1], _source(lines))
            opened = None
        else:
            lines.append(_dedent(line, opened[2]))
    if opened is not None:
        yield FencedBlock(opened[1], _source(lines))


def _fence(line: str) -> tuple[str, str, int] | None:
    """(fence, what follows it, its indent) of a line that opens or closes a block."""
    bare = line.lstrip(" ")
    for mark in ("`", "~"):
        length = len(bare) - len(bare.lstrip(mark))
        if length >= 3:
            info = bare[length:].strip()
            return None if mark in info else (mark * length, info, len(line) - len(bare))
    return None


def _tag(info: str) -> str:
    """`python`, of "python title=x", "{.python}" or "python,ignore"."""
    words = info.strip("{}").replace(",", " ").replace(":", " ").split()
    return words[0].removeprefix(".").lower() if words else ""


def _dedent(line: str, indent: int) -> str:
    """A fence in a list item is indented, and its content with it."""
    return line[min(indent, len(line) - len(line.lstrip(" "))) :]


def _source(lines: list[str]) -> str:
    return "".join(f"{line.removesuffix(chr(13))}\n" for line in lines)
