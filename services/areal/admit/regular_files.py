"""Refusal of special files: pipes, sockets and devices, whose reader may wait for ever."""

from __future__ import annotations

from pathlib import Path

from areal.errors import DataError


def refuse_pipes(*paths: Path) -> None:
    """Raise DataError for the first of them that is there and is neither a file nor a directory."""
    for path in paths:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise DataError(f"{path} is no regular file", fix="Put a file there, or correct the path.")
