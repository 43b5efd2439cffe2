"""The block of docs/security.md that says who may call whom, on which port and which methods: the table of callers."""

from __future__ import annotations

import re
from pathlib import Path

from areal_operator.operator.children.network import as_markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
_BLOCK = re.compile(r"(<!-- who may call whom: make docs -->\n).*?(<!-- end of who may call whom -->)", re.S)


def render(page: Path = PAGE) -> str:
    """The page with its block made anew."""
    return _BLOCK.sub(lambda found: found[1] + as_markdown() + found[2], page.read_text(encoding="utf-8"))
