"""What a zygote does before it forks anything: it goes the way of a program, with one that does nothing.

An interpreter learns while it runs a piece of code for the first times: where attributes are found, which instructions
fit. It writes that into the code and its caches, so each forked process that had to learn it again would copy those
pages, at the price of a page fault each.
"""

from __future__ import annotations

import linecache
import os
import random
import socket
import sys

from areal.reward.sandbox import messages, program
from areal.reward.sandbox.orders import write_order
from areal.reward.sandbox.values import Run, Script

_ROUNDS = 24  # code is specialised after eight calls, in steps
_NOTHING = Run(Script("print(end='')"))


def rehearse() -> None:
    """Leaves everything as it was, but for what the interpreter has learnt. Standard output must be silent."""
    argv, path, main = sys.argv, sys.path[:], sys.modules["__main__"]
    zygote, entry = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with zygote, entry:
        for _ in range(_ROUNDS):
            _once(zygote, entry)
    sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, main
    linecache.cache.pop(program.SCRIPT_NAME, None)


def _once(zygote: socket.socket, entry: socket.socket) -> None:
    descriptor = write_order(_NOTHING)
    messages.send(zygote, messages.RUN, [descriptor])
    os.close(descriptor)
    order, _ = program.receive(entry)
    program.lay_files(order)
    program.set_limits(order, ())
    random.seed()
    program.action_of(order, None)
    program.say_go(entry)
    zygote.recv(messages.DATAGRAM_BYTES)
    program.flushed(program.run_script(order.body.decode("utf-8", "surrogatepass"), order.head["argv"]))
