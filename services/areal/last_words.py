"""The error that a child process ended with, told to its parent by a file that the parent named.

An exit code says what kind of error it was; this says which one, so that the parent can raise it as its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from areal.errors import ArealError, Kind, by_kind

ERROR_FILE = "AREAL_ERROR_FILE"  # environment variable: where a child writes its error


def write_error(error: ArealError) -> None:
    """Leave the error for the parent, if it asked."""
    if path := os.environ.get(ERROR_FILE):
        text = {"kind": error.kind.value, "message": error.message, "fix": error.fix}
        Path(path).write_bytes(orjson.dumps(text))


def read_error(path: Path) -> ArealError | None:
    """What a child left; None when it left nothing that can be read."""
    try:
        text = orjson.loads(path.read_bytes())
        return by_kind(Kind(text["kind"]), str(text["message"]), fix=str(text["fix"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
