"""Inside a cell: runs trusted code of a suite. The payload is `(task, …)`.

bridged   tests of a program that lives in another cell
together  tests that need the program's own classes, in the program's process
checker   a suite's checker over what a program printed
"""

from __future__ import annotations

import socket

from areal_judge.judge import codec
from areal_judge.judge.drivers import bridged, checker, together
from areal_judge.judge.drivers.wire import REQUEST_BYTES, REQUEST_NODES


def main(channel: socket.socket, payload: bytes) -> int:
    """Does the task. Returns the exit code."""
    task, *given = codec.decode(payload, max_bytes=REQUEST_BYTES, max_nodes=REQUEST_NODES)
    if task == "bridged":
        return bridged.run(channel, *given)
    if task == "together":
        return together.run(channel, *given)
    return checker.run(*given)
