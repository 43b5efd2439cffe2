"""Inside a cell: runs trusted code of a suite. The payload is `(task, …)`.

bridged   tests of a program that lives in another cell
together  tests that need the program's own classes, in the program's process
checker   a suite's checker over what a program printed
"""

from __future__ import annotations

import builtins
import io
import socket
import sys
import types
from typing import Any

from areal_judge.judge import codec
from areal_judge.judge.drivers import bridged, together
from areal_judge.judge.drivers.wire import REQUEST_BYTES, REQUEST_NODES

_NAMES = ("input", "output", "answer")


def main(channel: socket.socket, payload: bytes) -> int:
    """Does the task. Returns the exit code."""
    task, *given = codec.decode(payload, max_bytes=REQUEST_BYTES, max_nodes=REQUEST_NODES)
    if task == "bridged":
        return bridged.run(channel, *given)
    if task == "together":
        return together.run(channel, *given)
    return _check(*given)


def _check(source: str, *contents: bytes) -> int:
    """Runs a trusted checker program over an output that a program printed. The exit code is the checker's.

    The checker reads the files `input`, `output` and `answer` (their names are also its arguments, as testlib's
    checkers expect). They are in memory: a tier without a scratch directory runs it, too.
    """
    files = dict(zip(_NAMES, contents, strict=True))
    builtins.open = io.open = _opener(files)
    sys.argv = ["checker", *_NAMES]
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
