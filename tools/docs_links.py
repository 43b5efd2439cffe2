"""Hook of mkdocs: links that leave docs/ become plain code, as the site holds the pages alone.

On a code host `[the table](../services/areal/plan/role_specs.py)` opens the file; on the site it reads
`the table` (`services/areal/plan/role_specs.py`). A path that doesn't exist is an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<path>(?:\.\./)+[^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, /, *, page: Any, **_: Any) -> str:
    """The page's text with the links that lead outside docs/ replaced."""
    source = ROOT / "docs" / page.file.src_uri
    return LINK.sub(lambda link: replaced(link, source), markdown)


def replaced(link: re.Match[str], source: Path) -> str:
    """What stands for one link of the page `source`: itself when it stays inside docs/, else text and path."""
    target = (source.parent / link["path"]).resolve()
    if target.is_relative_to(ROOT / "docs"):
        return link[0]
    if not target.exists():
        raise FileNotFoundError(f"{source.relative_to(ROOT)}: {link['path']} does not exist")
    shown = f"`{target.relative_to(ROOT)}`"
    text = link["text"]
    return shown if text.strip("`") in str(target) else f"{text} ({shown})"
