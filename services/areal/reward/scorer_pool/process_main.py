"""A killable process with a scorer: reads batches of items, judges one after the other, writes the results.

    python -m areal.reward.scorer_pool.process_main SCORER ARGUMENT… --socket FD --current FD

Started by `process`, under a keeper, never by people. Prints of user code go to the service's log.
"""

import argparse
import importlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from areal.errors import ArealError
from areal.reward.scorer_pool import frames

Judge = Callable[[Any], Any]
_FLUSH_AFTER_S = 0.002  # results wait at most one item longer than this
_READ_BYTES = 1 << 20


def make_judge(scorer: str, arguments: list[str]) -> Judge:
    """Imports a scorer's module and makes what judges its items. Raises ArealError when that can never work."""
    judge: Judge = importlib.import_module(scorer).make_judge(*arguments)
    return judge


def limit_memory(added_bytes: int) -> None:
    """Lets the process grow by this much from what it maps now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    limit = mapped + added_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def serve(link: socket.socket, current: frames.ProgressArea, judge: Judge) -> None:
    """Judges batches until the service closes its end."""
    reader = frames.FrameReader()
    done = 0
    while data := link.recv(_READ_BYTES):
        for batch in reader.feed(data):
            results: list[Any] = []
            flushed = time.monotonic()
            for payload in batch:
                now = time.monotonic()
                if results and now - flushed > _FLUSH_AFTER_S:
                    link.sendall(frames.encode(results))
                    results = []
                    flushed = now
                current.write(done)
                value = judge(payload)
                results.append((value, time.monotonic() - now))
                done += 1
            current.write(done)
            link.sendall(frames.encode(results))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("scorer", help="module with a make_judge")
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--current", type=int, required=True)
    parser.add_argument("--memory-bytes", type=int, default=0)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    os.dup2(2, 1)
    link = socket.socket(fileno=given.socket)
    for descriptor in (given.socket, given.current):
        os.set_inheritable(descriptor, False)  # programs that user code starts must not hold the line open
    try:
        judge = make_judge(given.scorer, given.arguments)
    except ArealError as error:
        link.sendall(frames.encode({"failed": error.message, "fix": error.fix}))
        return int(error.exit_code)
    if given.memory_bytes:
        limit_memory(given.memory_bytes)
    link.sendall(frames.encode({"ready": True, "pid": os.getpid()}))
    serve(link, frames.ProgressArea(given.current), judge)
    return 0


if __name__ == "__main__":
    sys.exit(main())
