"""What the service, a zygote and a cell say to each other.

Control messages are JSON in SOCK_SEQPACKET datagrams, descriptors beside them. What is big (source, files, payload)
goes through an order: an anonymous file that the service writes and the cell reads, never the zygote.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from areal.reward.sandbox.values import Command, Driver, Limits, Run, Script

DATAGRAM_BYTES = 64 << 10
READY = b'{"ready":true}'  # a cell's program waits for a run
_LENGTH = struct.Struct("<I")
_as_json = json.JSONEncoder(separators=(",", ":")).encode
_of_json = json.JSONDecoder().raw_decode  # what `json.loads` does beside it is for JSON that others wrote
_DESCRIPTOR = struct.Struct("i")


class Shape(NamedTuple):
    """What must be decided before a program is made ready; everything else is set when a run is handed to it."""

    fork: bool
    execute: bool
    disk_bytes: int
    inodes: int
    keep: bool = False  # whether its warden will be asked for files

    @staticmethod
    def of(run: Run) -> Shape:
        fork, execute = run.limits.processes > 1, isinstance(run.entry, Command)
        return Shape(fork, execute or fork, run.limits.disk_bytes, run.limits.inodes, bool(run.keep))


def send(link: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    data = _as_json(message).encode()
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
    return (_of_json(data.decode())[0] if data else None), given


def limits_of(limits: Limits) -> dict[str, Any]:
    return dict(vars(limits))


def write_order(run: Run) -> int:
    """Everything of a run that only its cell needs, as a descriptor."""
    entry = run.entry
    head: dict[str, Any] = {"executable": list(run.executable)}
    blobs: list[bytes] = []
    if isinstance(entry, Script):
        head |= {"kind": "script", "argv": list(entry.argv)}
        blobs.append(entry.source.encode("utf-8", "surrogatepass"))
    elif isinstance(entry, Driver):
        head |= {"kind": "driver", "module": entry.module}
        blobs.append(entry.payload)
    else:
        head |= {"kind": "command", "argv": list(entry.argv), "environment": dict(entry.environment)}
        blobs.append(b"")
    head["files"] = [[path, len(data)] for path, data in run.files.items()]
    blobs += run.files.values()
    text = _as_json(head).encode()
    blobs[0] = _LENGTH.pack(len(text)) + text + _LENGTH.pack(len(blobs[0])) + blobs[0]
    descriptor = os.memfd_create("order", os.MFD_CLOEXEC)
    try:
        for blob in blobs:
            left = memoryview(blob)
            while left:
                left = left[os.write(descriptor, left) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@dataclass(frozen=True)
class Order:
    """An order as the cell reads it."""

    head: dict[str, Any]
    body: bytes  # source or payload
    files: tuple[tuple[str, bytes], ...]


def read_order(descriptor: int) -> Order:
    """Reads an order."""
    data = os.pread(descriptor, os.lseek(descriptor, 0, os.SEEK_END), 0)
    (size,) = _LENGTH.unpack_from(data)
    head, _ = _of_json(data[4 : 4 + size].decode())
    (body_size,) = _LENGTH.unpack_from(data, 4 + size)
    at = 8 + size + body_size
    files = []
    for path, length in head["files"]:
        files.append((path, data[at : at + length]))
        at += length
    return Order(head, data[8 + size : 8 + size + body_size], tuple(files))
