"""Opens a version by its digest and checks every byte before anyone computes with it.

Owns the answer to "are these the weights that the trainer published?". Never lists a directory and never trusts a file
that the manifest doesn't name. What is wrong is a DataError naming the tensor; a volume that fails is an InfraError.
"""

import hashlib
import mmap
from collections.abc import Iterator
from pathlib import Path

import xxhash

from areal.errors import DataError, InfraError
from areal.weights.manifest import MANIFEST_NAME, Manifest, TensorEntry, digest_of
from areal.weights.safetensors_format import read_header

_FIX = "Publish the version again; if it happens again, check the volume."


def open_version(path: Path, digest: str) -> Manifest:
    """The manifest of the version at `path`, if it is the one that `digest` names."""
    try:
        raw = (path / MANIFEST_NAME).read_bytes()
    except OSError as error:
        raise InfraError(
            f"the weights at {path} can't be read: {error}",
            fix="Ask for a newer version, or check that the weights' volume is mounted.",
        ) from error
    return manifest_of(raw, path, digest)


def manifest_of(raw: bytes, path: Path, digest: str) -> Manifest:
    """The manifest with these bytes, which lie at `path`, if it is the one that `digest` names."""
    if (found := digest_of(raw)) != digest:
        raise DataError(f"the manifest at {path} has digest {found[:16]}…, not {digest[:16]}… as announced", fix=_FIX)
    return Manifest.from_bytes(raw)


def verify_tensors(path: Path, manifest: Manifest) -> None:
    """Read every byte of a version once; raises DataError naming the first tensor or file that differs."""
    check_files(path, manifest)
    for _ in read_verified(path, manifest):
        pass


def check_files(path: Path, manifest: Manifest) -> None:
    """Check the files beside the weights; raises DataError naming the one that is missing or differs."""
    for name, expected in manifest.files.items():
        try:
            content = (path / name).read_bytes()
        except FileNotFoundError:
            raise DataError(f"{name} of policy {manifest.policy} is missing at {path}", fix=_FIX) from None
        if hashlib.sha256(content).hexdigest() != expected:
            raise DataError(f"{name} of policy {manifest.policy} differs from what was published", fix=_FIX)


def read_verified(path: Path, manifest: Manifest) -> Iterator[tuple[str, TensorEntry, memoryview]]:
    """Yield every tensor's bytes, checked; shard by shard, in the order of the file.

    Views are read-only windows into the mapped file; the mapping lives as long as its last view.
    """
    shards: dict[str, list[tuple[str, TensorEntry]]] = {}
    for name, entry in manifest.tensors.items():
        shards.setdefault(entry.shard, []).append((name, entry))
    for shard, tensors in sorted(shards.items()):
        tensors.sort(key=lambda item: item[1].offset)
        try:
            yield from _read_shard(path / shard, tensors, manifest.policy)
        except FileNotFoundError:
            raise DataError(
                f"tensor {tensors[0][0]!r} of policy {manifest.policy} is missing: no file {path / shard}", fix=_FIX
            ) from None
        except OSError as error:
            raise InfraError(f"{path / shard} can't be read: {error}", fix="Check the weights' volume.") from error


def _read_shard(
    file_path: Path, tensors: list[tuple[str, TensorEntry]], policy: str
) -> Iterator[tuple[str, TensorEntry, memoryview]]:
    size = file_path.stat().st_size
    for name, entry in tensors:
        if entry.offset + entry.length > size:
            raise DataError(f"tensor {name!r} of policy {policy} is cut off: {file_path} has {size} bytes", fix=_FIX)
    _check_header(file_path, tensors, policy)
    with file_path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # unmapped when its last view is gone
    data.madvise(mmap.MADV_SEQUENTIAL)
    whole = memoryview(data)
    for name, entry in tensors:
        view = whole[entry.offset : entry.offset + entry.length]
        if xxhash.xxh3_128_hexdigest(view) != entry.xxh3:
            raise DataError(f"tensor {name!r} of policy {policy} differs from what was published", fix=_FIX)
        yield name, entry, view


def _check_header(file_path: Path, tensors: list[tuple[str, TensorEntry]], policy: str) -> None:
    """The file's own header must say what the manifest says: loaders that know no manifest believe the header."""
    start, headers = read_header(file_path)
    in_file = {
        header.name: (header.dtype, header.shape, start + header.start, start + header.end) for header in headers
    }
    in_manifest = {
        name: (entry.dtype, entry.shape, entry.offset, entry.offset + entry.length) for name, entry in tensors
    }
    for name in sorted(in_file.keys() | in_manifest.keys()):
        if in_file.get(name) != in_manifest.get(name):
            raise DataError(f"tensor {name!r} of policy {policy} is described differently in {file_path}", fix=_FIX)
