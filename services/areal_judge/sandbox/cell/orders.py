"""An order: everything of a run that only its cell needs, as an anonymous file that the service writes.

Source, files, payload and limits go past the zygote in it. Its head is JSON; what is big follows as bytes.
"""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from areal_judge.sandbox.cell.messages import as_json, of_json
from areal_judge.sandbox.values import Driver, Limits, ProgramRun, PythonScript

_LENGTH = struct.Struct("<I")


def _rlimits(limits: Limits, address_space: int, tasks: int) -> list[tuple[int, int]]:
    """Limits of a process by kind, but for processor time: that counts from its first instruction."""
    bounds = [
        (resource.RLIMIT_FSIZE, limits.disk_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_STACK, limits.stack_bytes),
        (resource.RLIMIT_MEMLOCK, 64 << 10),
        (resource.RLIMIT_SIGPENDING, 256),
    ]
    bounds += [
        (kind, most) for kind, most in ((resource.RLIMIT_AS, address_space), (resource.RLIMIT_NPROC, tasks)) if most
    ]
    return bounds


def packed(run: ProgramRun, *, address_space: int = 0, tasks: int = 0) -> list[bytes]:
    """The order for a run, in pieces. `address_space` in bytes and `tasks` are 0 where something else bounds them."""
    entry = run.entry
    head: dict[str, Any] = {
        "executable": list(run.executable), "files": [[path, len(data)] for path, data in run.files.items()],
        "writable": run.writable, "cpu_s": run.limits.cpu_s,
        "rlimits": _rlimits(run.limits, address_space, tasks),
    }  # fmt: skip
    body = b""
    if isinstance(entry, PythonScript):
        head |= {"kind": "script", "argv": list(entry.argv), "prelude": entry.prelude}
        body = entry.source.encode("utf-8", "surrogatepass")
    elif isinstance(entry, Driver):
        head |= {"kind": "driver", "module": entry.module}
        body = entry.payload
    else:
        head |= {"kind": "command", "argv": list(entry.argv), "environment": dict(entry.environment)}
    text = as_json(head).encode()
    return [_LENGTH.pack(len(text)) + text + _LENGTH.pack(len(body)) + body, *run.files.values()]


def write_order(pieces: Iterable[bytes]) -> int:
    """An order as a descriptor."""
    descriptor = os.memfd_create("order", os.MFD_CLOEXEC)
    try:
        for piece in pieces:
            left = memoryview(piece)
            while left:
                left = left[os.write(descriptor, left) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@dataclass(frozen=True)
class CellOrder:
    """An order as the cell reads it."""

    head: dict[str, Any]
    body: bytes  # source or payload
    files: tuple[tuple[str, bytes], ...]


def read_order(descriptor: int) -> CellOrder:
    return unpacked(os.pread(descriptor, os.lseek(descriptor, 0, os.SEEK_END), 0))


def unpacked(data: bytes) -> CellOrder:
    (size,) = _LENGTH.unpack_from(data)
    head, _ = of_json(data[4 : 4 + size].decode())
    (body_size,) = _LENGTH.unpack_from(data, 4 + size)
    at = 8 + size + body_size
    files = []
    for path, length in head["files"]:
        files.append((path, data[at : at + length]))
        at += length
    return CellOrder(head, data[8 + size : 8 + size + body_size], tuple(files))
