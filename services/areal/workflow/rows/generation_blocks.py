"""Generation blocks of a chat template: what `{% generation %}` says is the assistant's, as places in a rendered chat.

Owns the marked twin of a template: a character stands at each end of its blocks, where no rule of Jinja about white
space sees it. What the twin writes counts only where it is the template's own text apart from the marks.
"""

import re
from collections.abc import Callable
from functools import lru_cache

from areal.errors import DataError
from areal.workflow.tokenizer import Tokenizer

_OPEN, _CLOSE = "\uf8fe", "\uf8ff"
_BEGINS = re.compile(r"(\{%[-+]?\s*generation\s*(-?)[-+]?%\})(\n?)")
_ENDS = re.compile(r"(?:(?<=\n)[ \t]*(?!\{%\+))?(\{%([-+]?)\s*endgeneration\s*[-+]?%\})")


def generation_blocks(
    whole: str, tokenizer: Tokenizer, render: Callable[[Tokenizer], str]
) -> list[tuple[int, int]] | None:
    """Start and end of each block in a rendered chat, in characters; None where the template has none that are sure.

    Args:
        whole: the chat as the tokenizer's template writes it.
        render: writes the same chat by another tokenizer.
    """
    marked = _marked(tokenizer)
    if marked is None or _OPEN in whole or _CLOSE in whole:
        return None
    try:
        text = render(marked)
    except DataError:
        return None
    if text.replace(_OPEN, "").replace(_CLOSE, "") != whole:
        return None
    pieces = re.split(f"([{_OPEN}{_CLOSE}])", text)
    if pieces[1::2] != [_OPEN, _CLOSE] * (len(pieces) // 4):  # one within another
        return None
    ends = [0]
    for said in pieces[::2]:
        ends.append(ends[-1] + len(said))
    return list(zip(ends[1:-1:2], ends[2::2], strict=False))


@lru_cache(maxsize=8)
def _marked(tokenizer: Tokenizer) -> Tokenizer | None:
    """The tokenizer with its template's blocks marked; None where there are none."""
    text = tokenizer.chat_template or ""
    begun = _BEGINS.sub(lambda tag: f"{tag[1]}{tag[3]}{{{{ '{_OPEN}' {tag[2]}}}}}", text)
    marked = _ENDS.sub(lambda tag: f"{{{{{'-' if tag[2] == '-' else ''} '{_CLOSE}' }}}}{tag[1]}", begun)
    return tokenizer.with_template(marked, tokenizer.kwargs) if marked != text else None
