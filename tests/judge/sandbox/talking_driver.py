"""A driver for tests: answers frames until the channel closes, in a way that the payload names."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time

_LENGTH = struct.Struct("<I")


def _read(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = channel.recv(size - len(data))
        if not chunk:
            break
        data += chunk
    return data


def main(channel: socket.socket, payload: bytes) -> int:
    if payload == b"huge":
        channel.sendall(_LENGTH.pack(0xFFFFFFF0) + b"x")
    elif payload == b"cut":
        channel.sendall(_LENGTH.pack(100) + b"x")
        return 0
    elif payload == b"stays":
        time.sleep(60)
    elif payload == b"dies":
        os._exit(7)
    elif payload == b"raises":
        raise RuntimeError("on purpose")
    while head := _read(channel, 4):
        frame = _read(channel, *_LENGTH.unpack(head))
        print("heard", len(frame))
        answer = payload + frame[::-1]
        channel.sendall(_LENGTH.pack(len(answer)) + answer)
    print("done", file=sys.stderr)
    return 3
