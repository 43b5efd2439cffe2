"""Texts that a model could write to whoever looks at them."""

from __future__ import annotations

HOSTILE = [
    b"<script>alert(1)</script>",
    b'"><img src=x onerror=alert(1)>',
    b"\x1b[2J\x1b[31mred\x00\x07",
    "\u202egnp.exe\u2066\u200bhidden".encode(),
    b"\xff\xfe\xc3\x28 broken",
    b"{{ 7 * 7 }}{% raw %}",
    b"a" * 1_000_000,
]
"""Scripts, markup, terminal codes, direction marks, broken UTF-8, templates, a line of a megabyte."""
