"""Inside a cell: runs a trusted checker program over an output that a program printed.

The checker reads the files `input`, `output` and `answer` (their names are also its arguments, as testlib's checkers
expect) and ends with testlib's exit codes. The files are in memory: a tier without a scratch directory runs it, too.
"""

from __future__ import annotations

import builtins
import io
import sys
import types
from typing import Any

NAMES = ("input", "output", "answer")


def run(source: str, *contents: bytes) -> int:
    """Runs a checker over input, output and answer. The exit code is the checker's."""
    files = dict(zip(NAMES, contents, strict=True))
    builtins.open = io.open = _opener(files)
    sys.argv = ["checker", *NAMES]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(source, "<checker>", "exec", dont_inherit=True), module.__dict__)
    return 0


def _opener(files: dict[str, bytes]) -> Any:
    real = io.open

    def opener(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
        name = str(file).removeprefix("./")
        if name not in files or set(mode) & set("wax+"):
            return real(file, mode, *arguments, **keywords)
        data = io.BytesIO(files[name])
        return data if "b" in mode else io.TextIOWrapper(data, encoding="utf-8", errors="surrogateescape")

    return opener
