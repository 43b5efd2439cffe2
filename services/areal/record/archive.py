"""Copies of run directories in an object store: what is copied, in which order, and how one becomes a directory again.

Below a run's address lie `run.json`, which lists files with sizes and digests, and `blobs/<digest>`, their bytes in
pieces, each written once, so that of a file that grew only the end is sent: what `run.json` doesn't list isn't there.
It is replaced as a whole, only as it was read, after all that it names: so a reader finds the run as it was at one
time, whenever a writer was killed.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import xxhash

from areal.errors import DataError, InfraError
from areal.files import PART
from areal.object_store import ObjectStore

LISTING = "run.json"
CHECKPOINTS = "checkpoints"
SMALL = ("resolved.json", "summary.json", "report.html", "live.json", "metrics.jsonl", "evaluations.jsonl", "evidence")
_WHOLE = (CHECKPOINTS, "exports")  # whose directories are whole from the moment that they have their names
_GROWING = (  # what is written later comes first: evidence never speaks of a batch that the journal lacks
    "dataset", "recipe", "evidence", "recording", "trajectories", "tokens", "tensorboard", "logs", "metrics.jsonl",
    "evaluations.jsonl", "resolved.json", "live.json", "summary.json", "report.html", "model", "journal", "fences",
)  # fmt: skip
_ABOVE = ("resolved.json", "live.json", "summary.json", "report.html", "logs")  # a run that goes on makes its own
_UNFINISHED = (PART, ".tmp")
_INDEX = ".metadata"  # of a checkpoint's tensors: the one hidden file that is read again
_KEPT_S = 3600.0  # a blob that nothing lists any more is left so long to those who read an older listing
_AT_ONCE = 4
_BLOCK_BYTES = 4 << 20
_PIECE_BYTES = 16 << 20  # of a file, as one object

FileEntry = tuple[int, tuple[str, ...]]  # size, and xxh3 of 128 bits of each piece; of older copies, one of the whole


@dataclass(frozen=True)
class RunListing:
    """The contents of `run.json`: files by their paths in the run directory, and blobs that they left."""

    files: dict[str, FileEntry] = field(default_factory=dict)
    dropped: dict[str, float] = field(default_factory=dict)  # digest → since when, Unix time
    at: float = 0.0

    def encoded(self) -> bytes:
        """As it is stored."""
        files = {path: (size, many[0] if len(many) == 1 else many) for path, (size, many) in self.files.items()}
        return json.dumps({"at": self.at, "files": files, "dropped": self.dropped}).encode()

    @property
    def digests(self) -> set[str]:
        """Of every piece that it names."""
        return {digest for _, digests in self.files.values() for digest in digests}

    @classmethod
    def decoded(cls, data: bytes, where: str) -> "RunListing":
        """Raises DataError for what is no listing."""
        try:
            raw = json.loads(data)
            files = {str(path): _entry(size, digests) for path, (size, digests) in raw["files"].items()}
            if any(PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts for path in files):
                raise ValueError("a path that leaves the run")
            return cls(files, {str(key): float(since) for key, since in raw["dropped"].items()}, float(raw["at"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{where}/{LISTING} lists no run: {error!r}", fix="Name a run's own address.") from None


class Archive:
    """Copies a run directory into a store, again and again. One thread at a time calls `copy`."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.time) -> None:
        self._root = run_dir
        self._clock = clock
        self._swept = False
        self._known: dict[str, tuple[tuple[int, int, int], FileEntry]] = {}  # path → inode, time and size; entry

    def copy(self, store: ObjectStore, sent: Callable[[int], None] = lambda count: None) -> RunListing:
        """Copy what the store lacks, then say so in its listing; answers that. Raises as the store does, and what
        `sent` raises, who is told of bytes by several threads; repeated, it goes on.

        A directory that its owner removes meanwhile is left out whole. Where another writer was faster, its listing is
        what the next pass starts from.
        """
        found = store.read(LISTING)
        before, mark = (RunListing(), None) if found is None else (RunListing.decoded(found[0], store.url), found[1])
        files: dict[str, FileEntry] = {}
        there = before.digests if self._swept else frozenset()  # a first pass looks at each: an object may be damaged
        with ThreadPoolExecutor(_AT_ONCE) as pool, ThreadPoolExecutor(_AT_ONCE) as sending:
            copied = lambda path: self._copied(store, path, there, sending, sent)  # noqa: E731
            for unit in self._units():
                with suppress(FileNotFoundError):
                    files |= zip(unit, list(pool.map(copied, unit)), strict=True)
        now, named = self._clock(), RunListing(files).digests
        gone = before.digests - named
        dropped = {digest: since for digest, since in before.dropped.items() if digest not in named}
        if not self._swept:  # what a writer sent and was killed before it listed it
            gone |= {key.rpartition("/")[2] for key in store.entries(_blob(""))} - named
        dropped |= dict.fromkeys(gone - dropped.keys(), now)
        doomed = {digest for digest, since in dropped.items() if now - since > _KEPT_S}
        after = RunListing(files, {digest: dropped[digest] for digest in dropped.keys() - doomed}, now)
        if store.replace(LISTING, after.encoded(), mark):
            self._swept = True
            store.delete(_blob(digest) for digest in sorted(doomed))
        return after

    def _units(self) -> Iterator[list[str]]:
        """Paths that are copied together or not at all."""
        for part in _WHOLE:
            place = self._root / part
            for inner in sorted(place.iterdir()) if place.is_dir() else ():
                if inner.is_dir() and not inner.is_symlink() and _is_shown(inner.name):
                    yield self._below(inner)
        for part in _GROWING:
            place = self._root / part
            if place.is_dir() and not place.is_symlink():
                yield from ([path] for path in self._below(place))
            elif place.is_file():
                yield [part]

    def _below(self, place: Path) -> list[str]:
        found: list[str] = []
        for folder, folders, names in os.walk(place):
            folders[:] = [name for name in folders if _is_shown(name)]
            paths = [Path(folder, name) for name in names if _is_shown(name)]
            found += [path.relative_to(self._root).as_posix() for path in paths if not path.is_symlink()]
        return sorted(found)

    def _copied(
        self, store: ObjectStore, path: str, there: Set[str], sending: Executor, sent: Callable[[int], None]
    ) -> FileEntry:
        """A file as it is now, in the store: one that grows is taken up to here. Raises FileNotFoundError."""
        with (self._root / path).open("rb") as file:
            descriptor = file.fileno()
            told = os.fstat(descriptor)
            state = (told.st_ino, told.st_mtime_ns, told.st_size)
            known = self._known.get(path)
            if known is None or known[0] != state:
                starts = range(0, max(told.st_size, 1), _PIECE_BYTES)
                ends = (min(start + _PIECE_BYTES, told.st_size) for start in starts)
                digests = (_digest(_blocks(descriptor, *span)) for span in zip(starts, ends, strict=True))
                self._known[path] = known = state, (told.st_size, tuple(digests))

            def send(piece: Piece) -> None:
                start, end, digest = piece
                blocks = lambda: _unchanged(_blocks(descriptor, start, end), digest, path, sent)  # noqa: E731
                store.write(_blob(digest), blocks, end - start)

            list(sending.map(send, (piece for piece in _pieces(known[1]) if piece[2] not in there)))
            return known[1]


Piece = tuple[int, int, str]  # of a file: start and end, digest


def _entry(size: int, digests: str | list[str]) -> FileEntry:
    entry = int(size), (digests,) if isinstance(digests, str) else tuple(map(str, digests))
    if len(entry[1]) not in (1, -(-entry[0] // _PIECE_BYTES)):
        raise ValueError(f"{len(entry[1])} pieces of {entry[0]} bytes")
    return entry


def _pieces(entry: FileEntry) -> Iterator[Piece]:
    size, digests = entry
    length = _PIECE_BYTES if len(digests) > 1 else size
    for at, digest in enumerate(digests):
        yield at * length, min((at + 1) * length, size), digest


def _blocks(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    """Bytes of an open file, whatever becomes of its name."""
    for at in range(start, end, _BLOCK_BYTES):
        yield os.pread(descriptor, min(_BLOCK_BYTES, end - at), at)


def _unchanged(blocks: Iterable[bytes], digest: str, path: str, sent: Callable[[int], None]) -> Iterator[bytes]:
    """These blocks, of each of which `sent` is told; raises InfraError behind the last when they are not what was
    digested: nothing is stored then."""
    found = xxhash.xxh3_128()
    for block in blocks:
        sent(len(block))
        found.update(block)
        yield block
    if found.hexdigest() != digest:
        raise InfraError(f"{path} changed while it was copied", fix="The next pass copies it.")


def begin(store: ObjectStore) -> None:
    """Write an empty listing where there is none: who may not write, or names no bucket, learns it here."""
    if store.read(LISTING) is None:
        store.replace(LISTING, RunListing().encoded(), None)


def listing_of(store: ObjectStore) -> RunListing:
    """The run that is at a store's address. Raises DataError where none is."""
    found = store.read(LISTING)
    if found is None:
        raise DataError(f"there is no run at {store.url}", fix="A run's address ends with its name and uid.")
    return RunListing.decoded(found[0], store.url)


def file_of(store: ObjectStore, path: str) -> bytes:
    """A small file of the run that is at a store's address. Raises DataError where it has none."""
    entry = listing_of(store).files.get(path)
    if entry is None:
        raise DataError(f"the run at {store.url} has no {path}", fix="Name another run.")
    return b"".join(
        block for start, end, digest in _pieces(entry) for block in store.blocks(_blob(digest), 0, end - start)
    )


def fetch(store: ObjectStore, target: Path, parts: Iterable[str], say: Callable[[str], None]) -> int:
    """Make files of a run at `target`: those of these paths and below them, all for "."; answers how many came.

    What is here already isn't fetched again, what broke off goes on where it was, and a file has its name only once it
    has its digest. A checkpoint that is damaged or gone is left out: an older one serves. Raises DataError for any
    other file that the store doesn't have as it was listed.
    """
    return _fetch(store, listing_of(store), target, tuple(parts), say)


def _fetch(
    store: ObjectStore, listing: RunListing, target: Path, wanted: tuple[str, ...], say: Callable[[str], None]
) -> int:
    listed = {path: entry for path, entry in listing.files.items() if "." in wanted or _is_in(path, wanted)}
    missing = {path: entry for path, entry in listed.items() if not _is_here(target / path, entry)}
    say(f"{len(missing)} of {len(listed)} files, {sum(size for size, _ in missing.values()) / 1e6:,.1f} MB")

    def take(item: tuple[str, FileEntry]) -> str:
        try:
            _take(store, target / item[0], item[1])
        except DataError as error:
            if not item[0].startswith(f"{CHECKPOINTS}/"):
                raise
            return f"{item[0]} is left out: {error.message}"
        return ""

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for words in filter(None, pool.map(take, missing.items())):
            say(words)
    return len(missing)


def fetched(address: str, parts: Iterable[str], say: Callable[[str], None]) -> Path:
    """A directory below runs/store with what says how a run in a store went, and these parts of it."""
    target = Path("runs") / "store" / address.rstrip("/").rpartition("/")[2]
    fetch(ObjectStore.connect(address), target, [*SMALL, *parts], say)
    return target


def restore(store: ObjectStore, target: Path, say: Callable[[str], None]) -> int:
    """Put into a run directory what a run of another place or name has to go on from; answers how many files came.

    That is all but what a run says of itself, and of the checkpoints the newest ones that the store keeps.
    """
    parts, listing = tuple(part for part in (*_WHOLE, *_GROWING) if part not in _ABOVE), listing_of(store)
    names = _names(listing.files, CHECKPOINTS)
    if not names:
        raise DataError(f"the run at {store.url} has no checkpoint yet", fix="Name another run, or start anew.")
    count = _fetch(store, listing, target, parts, say)
    lacking = _names([path for path in listing.files if not (target / path).is_file()], CHECKPOINTS)
    if names == lacking:
        raise DataError(f"no checkpoint of the run at {store.url} is whole", fix="Name another run, or start anew.")
    return count


def _take(store: ObjectStore, path: Path, entry: FileEntry) -> None:
    part = path.with_name(path.name + PART)
    path.parent.mkdir(parents=True, exist_ok=True)
    part.touch()
    with part.open("r+b") as file:
        for start, end, digest in _pieces(entry):
            if _digest(_blocks(file.fileno(), start, end)) == digest:
                continue  # of a fetch that broke off
            file.seek(start)
            file.writelines(store.blocks(_blob(digest), 0, end - start))
            file.flush()
            if _digest(_blocks(file.fileno(), start, end)) != digest:
                part.unlink()
                fix = "Fetch again, or name another run."
                raise DataError(f"{store.url}: {path.name} is not as it was listed", fix=fix)
        file.truncate(entry[0])
        os.fsync(file.fileno())
    part.replace(path)


def _names(files: Iterable[str], part: str) -> list[str]:
    return sorted({path.split("/")[1] for path in files if path.startswith(f"{part}/")})


def _is_shown(name: str) -> bool:
    return name == _INDEX or not (name.startswith(".") or name.endswith(_UNFINISHED))


def _is_in(path: str, parts: tuple[str, ...]) -> bool:
    return any(path == part or path.startswith(f"{part}/") for part in parts)


def _is_here(path: Path, entry: FileEntry) -> bool:
    if not path.is_file() or path.stat().st_size != entry[0]:
        return False
    with path.open("rb") as file:
        return all(_digest(_blocks(file.fileno(), start, end)) == digest for start, end, digest in _pieces(entry))


def _blob(digest: str) -> str:
    return f"blobs/{digest}"


def _digest(blocks: Iterable[bytes]) -> str:
    found = xxhash.xxh3_128()
    for block in blocks:
        found.update(block)
    return found.hexdigest()
