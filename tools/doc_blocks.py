#!/usr/bin/env python3
"""tools/doc_blocks.py — counts the code blocks of the documentation by language and by how each is proved.

Parser of code blocks: README.md, docs/ and the headers of examples/. Commands are read against the parser,
other blocks are run; or the line before one is a comment that says why not or which other test runs it:

    <!-- not run: cluster -->                        a reason of REASONS, and words behind a comma if need be
    <!-- run by: docs/test_docs_recipes.py::test_x -->

`text` is what something prints or draws, and has nothing to run.
"""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = ("bash", "python", "yaml", "json", "toml", "text")
REASONS = {
    "cluster": "needs a Kubernetes cluster",
    "gpu": "needs GPUs",
    "elsewhere": "downloads from, or is for, something that isn't of this project",
    "hours": "takes hours",
    "install": "changes what is installed on the machine",
    "tests": "is the tests themselves",
}
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>\w*) *$")
_COMMENT = re.compile(r"^ *<!-- (?P<mark>.*?) -->$")
_HERE = re.compile(r"(<<'(\w+)')(.*?\n)(.*?)^\2$", re.M | re.S)
_ENDS = {"&&", "||", ";", "|", "&"}
_APART = {  # a program, or a word of its line → why it isn't run
    "kubectl": "cluster",
    "helm": "cluster",
    "hf": "elsewhere",
    "pip": "install",
}
_COMMAND = re.compile(r"(areal|make|python|pip|tools/\w+) \S")


@dataclass(frozen=True)
class DocBlock:
    """One block. `marks` are the comments directly before it."""

    page: str  # from the repository's root
    line: int  # of its first line
    language: str
    text: str
    marks: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def not_run(self) -> str:
        """The reason why it is not run; empty when it is."""
        return next((mark.removeprefix("not run: ").split(",")[0] for mark in self.marks if "not run:" in mark), "")

    @property
    def run_by(self) -> str:
        """The test that runs it, below tests/; empty when the runner does."""
        return next((mark.removeprefix("run by: ") for mark in self.marks if mark.startswith("run by: ")), "")

    @property
    def is_run_here(self) -> bool:
        return self.language != "text" and not self.not_run and not self.run_by


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def all_blocks() -> list[DocBlock]:
    """Of every page and of every example's header, in order."""
    return [block for page in pages() for block in blocks_of(page)] + [
        block for path in sorted((ROOT / "examples").glob("*.*")) for block in header_blocks(path)
    ]


def blocks_of(page: Path) -> list[DocBlock]:
    return list(in_text(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))))


def in_text(text: str, page: str) -> Iterator[DocBlock]:
    """Fenced blocks, and as language "" those by four spaces of indentation, which can't name one."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence:
            end = lines.index(fence["indent"] + fence["ticks"], number + 1)
            inner = textwrap.dedent("\n".join(lines[number + 1 : end]) + "\n")
            yield DocBlock(page, number + 2, fence["language"], inner, _marks_before(lines, number))
            number = end
        elif lines[number].startswith("    ") and number and not lines[number - 1] and not _in_item(lines, number):
            yield DocBlock(page, number + 1, "", lines[number] + "\n")
        number += 1


def _marks_before(lines: list[str], number: int) -> tuple[str, ...]:
    found = []
    while number and (comment := _COMMENT.match(lines[number - 1])):
        found.append(comment["mark"])
        number -= 1
    return tuple(reversed(found))


def _in_item(lines: list[str], number: int) -> bool:
    """Whether an indented line goes on with a list's item or a tab."""
    before = next((line for line in reversed(lines[:number]) if line and not line.startswith("  ")), "")
    return bool(re.match(r"([-*]|\d+\.|===) ", before))


def header_blocks(example: Path) -> list[DocBlock]:
    """The commands of an example's header: each run of lines that begin with one."""
    text = example.read_text(encoding="utf-8")
    if example.suffix == ".yaml":
        header = [line[1:] for line in text.partition("\napiVersion")[0].splitlines()]
    elif example.suffix == ".py":
        header = (ast.get_docstring(ast.parse(text), clean=False) or "").splitlines()
    else:
        return []
    lines = [line.strip() for line in header if _COMMAND.match(line.strip())]
    job = example.with_suffix(".yaml")
    if job != example and job.exists():  # the job's header says the same once more
        lines = [line for line in lines if f"     {line}\n" not in job.read_text(encoding="utf-8")]
    reasons = [apart(words) for line in lines for words in commands_of(line) if words[0] != "make"]
    mark = next((f"not run: {reason}" for reason in reasons if reason), "")
    text = "".join(f"{line}\n" for line in lines)
    return [DocBlock(str(example.relative_to(ROOT)), 1, "bash", text, (mark,) if mark else ())] if lines else []


def commands_of(text: str) -> list[list[str]]:
    """The words of each command; variables that are set before it, redirections and here-documents are left out."""
    found: list[list[str]] = []
    for line in _HERE.sub(r"\3", text).replace("\\\n", " ").replace(",\n", ", ").splitlines():
        words = _words(line)
        while words:
            end = next((place for place, word in enumerate(words) if word in _ENDS), len(words))
            command = _without_redirections(words[:end])
            while command and re.match(r"\w+=", command[0]):
                del command[0]
            if command:
                found.append(command)
            words = words[end + 1 :]
    return found


def _without_redirections(words: list[str]) -> list[str]:
    aside = {place for place, word in enumerate(words) if re.fullmatch(r"[<>]+", word)}
    return [word for place, word in enumerate(words) if not aside & {place, place - 1}]


def _words(line: str) -> list[str]:
    reader = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
    reader.whitespace_split = True
    reader.commenters = "#"
    return list(reader)


def apart(words: list[str]) -> str:
    """The reason for which a test doesn't run a command; empty when it does."""
    line = " ".join(words)
    if words[0] in _APART:
        return _APART[words[0]]
    if line.startswith(("areal submit", "make images")) or " rljob/" in line:
        return "cluster"
    if "hf://" in line or "wandb" in line or line.startswith("tools/venv "):
        return "elsewhere"
    if line.startswith(("areal study", "make learn")):
        return "hours"
    return "install" if line.startswith(("make setup", "make quickstart", "make wheel")) else ""


def count(blocks: list[DocBlock]) -> dict[str, dict[str, int]]:
    """How many blocks of each language are run here, run by another test, not run by reason, or hold output."""
    found: dict[str, Counter[str]] = {}
    for block in blocks:
        how = (
            f"not run: {block.not_run}"
            if block.not_run
            else "run by another test"
            if block.run_by
            else "read"
            if block.language == "bash"
            else "run here"
        )
        found.setdefault(block.language, Counter())["output" if block.language == "text" else how] += 1
    return {language: dict(counts) for language, counts in sorted(found.items())}


if __name__ == "__main__":
    found = all_blocks()
    for language, counts in count(found).items():
        print(
            f"{language or '(none)':8} {sum(counts.values()):4}  "
            + ", ".join(f"{how} {n}" for how, n in counts.items())
        )
    print(f"{len(found)} blocks")
