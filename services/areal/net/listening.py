"""Listening sockets and their addresses: made here, or inherited from the launcher, which holds them over restarts.

A client that dials between two starts of a process waits in the socket's queue instead of being refused.
"""

import os
import socket
import stat
from collections.abc import Mapping

from areal.errors import InfraError

_PREFIX = "AREAL_LISTEN_"
_QUEUE = 1024  # connections that wait to be accepted; the kernel's own limit may be lower


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, on a free port where `port` is 0. Raises InfraError when it can't be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_QUEUE)
    except OSError as error:
        raise InfraError(
            f"can't listen on {join(host, port)}: {error.strerror}", fix="name another port, or end what uses it"
        ) from None


def variables(sockets: Mapping[str, socket.socket]) -> dict[str, str]:
    """The environment by which a child that inherits sockets finds them, by purpose."""
    return {f"{_PREFIX}{purpose.upper()}": str(held.fileno()) for purpose, held in sockets.items()}


def inherited(purpose: str) -> socket.socket | None:
    """The socket that the launcher holds for this purpose; None when it holds none. Children don't inherit it."""
    number = os.environ.get(f"{_PREFIX}{purpose.upper()}", "")
    try:
        if not number.isdigit() or not stat.S_ISSOCK(os.fstat(int(number)).st_mode):
            return None
    except OSError:
        return None
    found = socket.socket(fileno=int(number))
    found.set_inheritable(False)
    return found


def join(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
