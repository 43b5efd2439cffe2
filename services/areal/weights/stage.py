"""Stages versions for an engine: verified before generation is interrupted, deltas applied to a local copy.

A full version is read where it lies and checked byte by byte. A delta is applied to a copy of its base in a local
directory (memory or disk): the base that is staged already, else the chain of versions on the volume back to a full
one. Promises that what it returns has every byte of the manifest. What is wrong is a DataError naming the tensor.
"""

import contextlib
import hashlib
import logging
import mmap
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

from areal.errors import DataError, InfraError
from areal.values.policy import PolicyId
from areal.weights import delta
from areal.weights.adapter import ADAPTER_CONFIG
from areal.weights.manifest import DeltaEntry, Manifest, TensorEntry
from areal.weights.mirror import VolumeMirror
from areal.weights.publish import index_of
from areal.weights.safetensors_format import INDEX_NAME
from areal.weights.verify import check_files, open_version, verify_tensors

log = logging.getLogger(__name__)

# Local staging directory of one server: the same path at each start, private, emptied before use.


def own_directory(run: str, server: str, parent: Path | None = None) -> Path:
    """An empty directory below `parent` (the machine's temporary directory) that only this user can enter.

    `run` and `server` name it: at most one live server may use a pair. Where somebody else holds the name (another
    user's directory, a link, a file), nothing of it is touched, and the directory has a random name.
    """
    parent = parent or Path(tempfile.gettempdir())
    of_run = hashlib.sha256(run.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    path = parent / f"areal-stage-{os.getuid()}-{of_run}-{server}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    try:
        _empty(path)
    except OSError as error:
        log.warning("%s can't be used to stage weights (%s): a new directory is", path, error)
        return Path(tempfile.mkdtemp(prefix=f"{path.name}-", dir=parent))
    return path


def memory_directory(run: str, parent: Path = Path("/dev/shm")) -> Path:
    """The directory in shared memory where a run's trainer publishes for servers of its machine, or its pod.

    It is this user's alone, and found again by a restart. Raises InfraError where somebody else has its name.
    """
    path = parent / f"areal-weights-{os.getuid()}-{hashlib.sha256(run.encode()).hexdigest()[:12]}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InfraError(f"{path} is not this user's alone", fix="Remove it, or set weightSync.mode: SharedVolume.")
    return path


def _empty(path: Path) -> None:
    """Raises OSError, and changes nothing, unless this is a directory of this user."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(directory).st_uid != os.getuid():
            raise PermissionError("it belongs to another user")
        os.fchmod(directory, 0o700)
        for entry in os.listdir(directory):
            if stat.S_ISDIR(os.lstat(entry, dir_fd=directory).st_mode):
                shutil.rmtree(entry, dir_fd=directory)
            else:
                os.unlink(entry, dir_fd=directory)
    finally:
        os.close(directory)


VOLUME, MEMORY = "volume", "memory"
_KEPT = 2  # what the engine holds, to go back to, and what it takes next
_FIX = "The next full version heals it (weightSync.fullEvery)."


@dataclass(frozen=True)
class StagedVersion:
    """A version that an engine may load now: a whole Hugging Face directory, every byte checked."""

    path: Path
    manifest: Manifest


class StagingArea:
    """One server's staged versions, below `directory`, which is its own. Not for several threads at once."""

    def __init__(self, directory: Path, mirror: VolumeMirror | None = None, volume: Path | None = None) -> None:
        """`mirror`: versions aren't on a volume that is mounted here, but copied from one. `volume`: of those that were
        handed over in memory, this has some, for when that is gone.
        """
        self._directory = directory
        self._mirror = mirror
        self._volume = volume
        self._staged: dict[str, StagedVersion] = {}  # by manifest digest, oldest use first

    def loadable(self, path: Path, digest: str) -> Path | None:
        """Directory from which an engine can load the version at `path`, its bytes unread; None when there is none."""
        if (staged := self._staged.get(digest)) is not None:
            return staged.path if staged.path.is_dir() else None
        path = self._place(path)
        whole = not (path / ADAPTER_CONFIG).is_file()  # an adapter alone is nothing to start from
        return path if whole and any(path.glob("*.safetensors")) else None

    def manifest(self, path: Path, digest: str) -> Manifest:
        """The manifest of the version at `path`; raises as `open_version` does."""
        path = self._place(path)
        return open_version(path, digest) if self._mirror is None else self._mirror.manifest(path, digest)

    def way(self, staged: StagedVersion) -> str:
        """How a staged version came: label of the weight metrics."""
        return VOLUME if self._volume is None or staged.path.parent == self._volume else MEMORY

    def _place(self, path: Path) -> Path:
        """Where the version that was announced at `path` is now."""
        return path if self._volume is None or path.is_dir() else self._volume / path.name

    def prepare(self, path: Path, digest: str) -> StagedVersion:
        """The version at `path` as a directory that an engine loads. Raises DataError, or InfraError for the volume."""
        if self._mirror is None:
            return self._prepare(self._place(path), digest)
        try:
            staged = self._prepare(path, digest)
        except DataError:
            self._mirror.drop(path)  # a copy that was damaged here is read again by the next try
            raise
        self._mirror.keep(path)
        return staged

    def _prepare(self, path: Path, digest: str) -> StagedVersion:
        manifest = self._opened(path, digest)
        if manifest.base is None:
            verify_tensors(path, manifest)
            return StagedVersion(path, manifest)
        if digest in self._staged:
            staged = self._staged.pop(digest)
            try:
                verify_tensors(staged.path, manifest)
                self._staged[digest] = staged
                return staged
            except (DataError, InfraError):
                shutil.rmtree(staged.path, ignore_errors=True)  # damaged here: made anew
        try:
            staged = self._apply(path, digest, manifest)
        except OSError as error:
            raise InfraError(
                f"{manifest.policy} can't be staged at {self._directory}: {error}",
                fix=f"a server needs room for {_KEPT + 1} copies of the weights there",
            ) from error
        self._staged[digest] = staged
        for old in list(self._staged)[:-_KEPT]:
            shutil.rmtree(self._staged.pop(old).path, ignore_errors=True)
        return staged

    def close(self) -> None:
        """Remove everything that was staged."""
        if self._mirror is not None:
            self._mirror.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._staged.clear()

    def _apply(self, path: Path, digest: str, manifest: Manifest) -> StagedVersion:
        """Apply to the nearest staged base; when that comes out wrong, to the volume's full version."""
        target = self._directory / digest[:32]
        try:
            local = {digest: staged for digest, staged in self._staged.items() if staged.path.is_dir()}
            self._build(target, self._chain(path, manifest, local))
        except DataError:
            if not self._staged:
                raise
            self._build(target, self._chain(path, manifest, {}))
        return StagedVersion(target, manifest)

    def _build(self, target: Path, chain: list[StagedVersion]) -> None:
        base, *deltas = chain
        last = deltas[-1]
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        try:
            for shard in sorted({entry.shard for entry in base.manifest.tensors.values()}):
                shutil.copyfile(base.path / shard, target / shard)
            for step in deltas:
                _apply_tensors(step, target)
            for name in last.manifest.files:
                shutil.copyfile(last.path / name, target / name)
            check_files(target, last.manifest)
            tensors = last.manifest.tensors
            if len({entry.shard for entry in tensors.values()}) > 1:
                (target / INDEX_NAME).write_bytes(index_of(tensors))
            verify_tensors(target, last.manifest)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise

    def _opened(self, path: Path, digest: str) -> Manifest:
        if self._mirror is not None:
            self._mirror.bring(path, digest)
        return open_version(path, digest)

    def _chain(self, path: Path, manifest: Manifest, local: Mapping[str, StagedVersion]) -> list[StagedVersion]:
        """From a whole version to `manifest`, in the order of application."""
        chain = [StagedVersion(path, manifest)]
        while (oldest := chain[0].manifest).base is not None:
            if oldest.base in local:
                return [local[oldest.base], *chain]
            if oldest.base_policy is None:
                raise DataError(f"{oldest.policy} is a delta that does not name its base's policy", fix=_FIX)
            where = path.parent / PolicyId.parse(oldest.base_policy).directory
            try:
                chain.insert(0, StagedVersion(where, self._opened(where, oldest.base)))
            except (DataError, InfraError) as error:
                raise DataError(
                    f"{manifest.policy} is a delta, and its base {oldest.base_policy} is lost: {error.message}",
                    fix=_FIX,
                ) from error
        return chain


def _apply_tensors(step: StagedVersion, target: Path) -> None:
    """Apply one delta to the files in `target`, checking its own bytes; the result is checked by who calls."""
    by_shard: dict[str, list[tuple[str, TensorEntry, DeltaEntry]]] = {}
    for name, change in step.manifest.deltas.items():
        entry = step.manifest.tensors[name]
        by_shard.setdefault(entry.shard, []).append((name, entry, change))
    payloads = {file: (step.path / file).read_bytes() for file in {one.file for one in step.manifest.deltas.values()}}
    for shard, changes in by_shard.items():
        with (target / shard).open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
            for name, entry, change in changes:
                payload = payloads[change.file][change.offset : change.offset + change.length]
                if xxhash.xxh3_128_hexdigest(payload) != change.xxh3:
                    raise DataError(
                        f"the delta of tensor {name!r} of {step.manifest.policy} differs from what was published",
                        fix=_FIX,
                    )
                view = memoryview(data)[entry.offset : entry.offset + entry.length]
                try:
                    delta.apply(view, change.encoding, payload)
                finally:
                    view.release()
