"""Local copies of directories on the run's volume, for a server that doesn't mount it.

Owns how they are read over the network: from the role that has the volume or, where that says so, from a server that
has a copy already; file by file, from where a broken stream ended. A directory has its name only when it is whole.
Whether the bytes are the published ones is the reader's to check, as on the volume itself. Everything here blocks: call
it in a thread.
"""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from areal import tls
from areal.errors import DataError, InfraError
from areal.files import PART
from areal.net import channel
from areal.net.auth import header
from areal.net.heartbeat import Backoff
from areal.net.status import raise_as
from areal.v1 import weights_pb2 as wire
from areal.v1 import weights_pb2_grpc as rpc
from areal.weights.manifest import MANIFEST_NAME, Manifest
from areal.weights.verify import manifest_of, open_version

log = logging.getLogger(__name__)

MODEL, TOKENIZER = "model", "tokenizer"  # names of the start model's and the tokenizer's directory
_KEPT = 2  # versions: what the engine holds, to go back to, and what it takes next
_LIST_S = 30.0
_TURN_S = 0.2  # between two questions whether a source has time
_LONGEST_TURN_S = 60.0  # then the volume is read all the same: those who read may have died
_CONNECT_S = 5.0
_PATIENCE_S = 30.0  # without a byte, until an error is told; who wanted the version tries again


class VolumeMirror:
    """Copies below `root`, which is this server's own. `address`: of the role that has the volume."""

    def __init__(self, root: Path, address: str, token: str, *, patience_s: float = _PATIENCE_S) -> None:
        self.root = root
        self._address = address
        self._own, self._channel = tls.identity(), channel.blocking(address)
        self._metadata = (header(token),)
        self._patience_s = patience_s
        self._closed = threading.Event()
        self.address = ""  # under which others read this server's copies of versions; empty: they don't
        self._distrusted: set[str] = set()  # versions of which a copy was wrong
        self._versions: list[str] = []  # that are wanted, oldest first

    @property
    def _files(self) -> rpc.VolumeFilesStub:
        if (own := tls.identity()) != self._own:
            self._own, self._channel = own, channel.blocking(self._address)
        return rpc.VolumeFilesStub(self._channel)

    def place(self, path: Path) -> Path:
        """Where the copy of a version's directory is, or will be."""
        return self.root / path.name

    def directory(self, name: str, *, patience_s: float | None = None) -> Path:
        """The copy of a directory that never changes, read unless it is there. Raises InfraError."""
        place = self.root / name
        if not place.is_dir():
            self._read_directory(name, place, patience_s or self._patience_s)
        return place

    def manifest(self, place: Path, digest: str) -> Manifest:
        """The manifest of a version, without the rest of it. Raises as `open_version` does."""
        if (here := self._here(place, digest)) is not None:
            return here
        raw = b"".join(self._chunks(place.name, MANIFEST_NAME, 0, self._patience_s))
        return manifest_of(raw, place, digest)

    def bring(self, place: Path, digest: str) -> None:
        """Have a version's copy at `place`. Raises InfraError, and DataError when the volume has no such version."""
        if self._here(place, digest) is None:
            self.drop(place)
            self.manifest(place, digest)  # refuses another version before its bytes are read
            self._read_directory(place.name, place, self._patience_s)

    def drop(self, place: Path) -> None:
        """Forget a copy that isn't what it should be: the next look reads it again, from the volume itself."""
        if place.is_dir():
            self._distrusted.add(place.name)
            shutil.rmtree(place, ignore_errors=True)

    def keep(self, place: Path) -> None:
        """Remove the copies of all versions but this one and those for which this was called last."""
        self._versions = [*(name for name in self._versions if name != place.name), place.name][-_KEPT:]
        for path in self.root.iterdir():
            if path.name.removesuffix(PART) not in (MODEL, TOKENIZER, *self._versions):
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """End what is being read, and remove all copies."""
        self._closed.set()
        self._channel.close()
        shutil.rmtree(self.root, ignore_errors=True)

    @staticmethod
    def _here(place: Path, digest: str) -> Manifest | None:
        try:
            return open_version(place, digest)
        except (DataError, InfraError):
            return None

    def _read_directory(self, name: str, place: Path, patience_s: float) -> None:
        began = time.monotonic()
        reader = "" if name in (MODEL, TOKENIZER, *self._distrusted) else self.address
        listed = self._list(name, reader, patience_s)
        staging, sizes = place.with_name(place.name + PART), listed.sizes
        try:
            staging.mkdir(parents=True, exist_ok=True)
            with channel.blocking(listed.source or self._address) as connection:
                server = rpc.VolumeFilesStub(connection) if listed.source and _answers(connection) else None
                for file, size in sizes.items():
                    server = self._read_file(name, file, size, staging / Path(file).name, server, patience_s)
            staging.rename(place)
        except OSError as error:
            raise InfraError(
                f"{name} can't be copied to {self.root}: {error}",
                fix=f"a server needs room for the start model and {_KEPT + 1} copies of the weights there",
            ) from error
        took = time.monotonic() - began
        source = self._address if server is None else listed.source
        log.info("read %s, %d bytes, from %s after %.3f s", name, sum(sizes.values()), source, took)
        if reader:
            with contextlib.suppress(grpc.RpcError):  # then nobody reads here
                has = wire.ListFilesRequest(directory=name, reader=reader, has=True)
                self._files.ListFiles(has, timeout=_LIST_S, metadata=self._metadata)

    def _read_file(
        self, directory: str, name: str, size: int, path: Path, server: rpc.VolumeFilesStub | None, patience_s: float
    ) -> rpc.VolumeFilesStub | None:
        """Read a file from a server, and from the volume what that didn't bring; answers the server if it did."""
        with path.open("ab") as file:
            if server is not None:
                try:
                    asked = wire.ReadFileRequest(directory=directory, name=name, offset=file.tell())
                    for chunk in server.ReadFile(asked, metadata=self._metadata):
                        file.write(chunk.data)
                        if self._closed.is_set():
                            raise InfraError(f"{directory} is not read to its end: the server stops")
                except grpc.RpcError as error:
                    log.warning("a server that has %s broke off: %s", directory, error)
                    server = None
            if file.tell() != size:
                for data in self._chunks(directory, name, file.tell(), patience_s):
                    file.write(data)
            if (found := file.tell()) != size:
                file.truncate(0)
                raise InfraError(f"{found} bytes of {name} of {directory} came, not {size}: it changed meanwhile")
        return server

    def _list(self, directory: str, reader: str, patience_s: float) -> wire.ListFilesResponse:
        """The files, and from whom to read them; waits for its turn while others read, for some time."""
        backoff, until = Backoff(0.1, 2.0), time.monotonic() + patience_s
        asked, turn_by = wire.ListFilesRequest(directory=directory, reader=reader), time.monotonic() + _LONGEST_TURN_S
        while True:
            try:
                listed = self._files.ListFiles(asked, timeout=_LIST_S, metadata=self._metadata)
            except grpc.RpcError as error:
                self._again(error, until, backoff)
                continue
            if not listed.busy or self._closed.wait(_TURN_S):
                return listed
            until = time.monotonic() + patience_s
            if time.monotonic() > turn_by:
                asked.reader = ""  # from the volume, at once

    def _chunks(self, directory: str, name: str, offset: int, patience_s: float) -> Iterator[bytes]:
        """A file's bytes from `offset`; a stream that breaks is continued as long as bytes come."""
        backoff, until = Backoff(0.1, 2.0), time.monotonic() + patience_s
        while True:
            try:
                asked = wire.ReadFileRequest(directory=directory, name=name, offset=offset)
                for chunk in self._files.ReadFile(asked, metadata=self._metadata):
                    yield chunk.data
                    offset += len(chunk.data)
                    until = time.monotonic() + patience_s
                return
            except grpc.RpcError as error:
                self._again(error, until, backoff)

    def _again(self, error: grpc.RpcError, until: float, backoff: Backoff) -> None:
        """Wait before the next try. Raises what went wrong when that can't be mended by waiting, or took too long."""
        try:
            raise_as(error)
        except InfraError:
            if time.monotonic() > until or self._closed.wait(backoff.failed()):
                raise


def _answers(connection: grpc.Channel) -> bool:
    """Whether somebody is there: a machine that lost its power refuses nothing."""
    try:
        grpc.channel_ready_future(connection).result(timeout=_CONNECT_S)
    except grpc.FutureTimeoutError:
        return False
    return True
