"""Protocol of service, zygote and cell: JSON in SOCK_SEQPACKET datagrams, descriptors beside it.

What a zygote needn't know goes past it as a descriptor (`orders`).
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from areal_judge.sandbox.values import ImageCommand, ProgramRun

DATAGRAM_BYTES = 64 << 10
READY = b'{"ready":true}'  # a cell's program waits for a run
RUN = {"run": True}  # with its order, three standard streams and a channel
as_json = json.JSONEncoder(separators=(",", ":")).encode
of_json = json.JSONDecoder().raw_decode  # what `json.loads` does beside it is for JSON that others wrote
_DESCRIPTOR = struct.Struct("i")


class CellShape(NamedTuple):
    """What must be decided before a program is made ready; everything else is set when a run is handed to it."""

    fork: bool
    execute: bool
    disk_bytes: int
    inodes: int
    keep: bool = False  # whether its warden will be asked for files

    @staticmethod
    def of(run: ProgramRun) -> CellShape:
        fork, execute = run.limits.processes > 1, isinstance(run.entry, ImageCommand)
        return CellShape(fork, execute or fork, run.limits.disk_bytes, run.limits.inodes, bool(run.keep))


def send(link: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    data = as_json(message).encode()
    if descriptors:
        socket.send_fds(link, [data], list(descriptors))
    else:
        link.send(data)


def receive(link: socket.socket, descriptors: int = 0) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message, None at the end. Raises BlockingIOError on a non-blocking socket without any."""
    given: list[int] = []
    if descriptors:
        data, beside, _, _ = link.recvmsg(DATAGRAM_BYTES, socket.CMSG_SPACE(descriptors * _DESCRIPTOR.size))
        for level, kind, packed in beside:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                given += [one for (one,) in _DESCRIPTOR.iter_unpack(packed[: len(packed) // 4 * 4])]
    else:
        data = link.recv(DATAGRAM_BYTES)
    return (of_json(data.decode())[0] if data else None), given
