"""Goes the way of a program with one that does nothing, before anybody waits for it.

An interpreter learns while it runs a piece of code for the first times: where attributes are found, which instructions
fit. It writes that into the code and its caches; a forked process that had to learn it again would copy those pages, at
the price of a page fault each. So a zygote rehearses before it forks. What a forked process must copy all the same, it
copies while it waits for its run.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import random
import socket
import sys
from collections.abc import Iterator

from areal.reward.sandbox import messages, program
from areal.reward.sandbox.orders import Order, packed, unpacked, write_order
from areal.reward.sandbox.values import Run, Script

_ROUNDS = 24  # code is specialised after eight calls, in steps
_ORDER = b"".join(packed(Run(Script("print(end='')"))))


def rehearse() -> None:
    """For a process that will fork. Leaves everything as it was, but for what the interpreter has learnt."""
    zygote, entry = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with zygote, entry, _unnoticed():
        for _ in range(_ROUNDS):
            descriptor = write_order([_ORDER])
            messages.send(zygote, messages.RUN, [descriptor])
            os.close(descriptor)
            order, _ = program.receive(entry)
            _go_through(order)
            program.say_go(entry)
            zygote.recv(messages.DATAGRAM_BYTES)


def be_ready(entry: socket.socket) -> None:
    """For the process of a program: says that it waits for a run, once it has what most runs need."""
    with _unnoticed():
        _go_through(unpacked(_ORDER))
    entry.send(messages.READY)


@contextlib.contextmanager
def _unnoticed() -> Iterator[None]:
    argv, path, main = sys.argv, sys.path[:], sys.modules["__main__"]
    yield
    sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, main
    linecache.cache.pop(program.SCRIPT_NAME, None)


def _go_through(order: Order) -> None:
    """What a program's process does with its order, and doesn't only do once."""
    program.lay_files(order)
    program.set_limits(order, ())
    random.seed()
    program.action_of(order, None)
    program.flushed(program.run_script(order.body.decode("utf-8", "surrogatepass"), order.head["argv"]))
