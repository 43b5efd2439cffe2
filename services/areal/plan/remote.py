"""Sources that are fetched before a run: models of the Hugging Face hub, models and rows in an object store.

An address in a store names one object (`s3://bucket/rows/train.jsonl`), all objects below it (`s3://bucket/models/m`),
or those of one folder that fit a pattern (`s3://bucket/rows/*.parquet`). Fetched by `areal run`, they lie in this
machine's cache, a directory for each state of the store, so that a run keeps what it started from.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TypeGuard

from areal.errors import ConfigError, DataError, InfraError
from areal.files import write_atomically
from areal.object_store import ObjectStore
from areal.plan import hub
from areal.spec.locality import FETCHED, locality_of
from areal.spec.locate import is_pattern
from areal.spec.quantity import show_bytes

_NEWEST = "newest"  # in the cache, of each address: the place of what was fetched last

Objects = dict[str, tuple[int, str]]  # name below the folder of an address → size, mark of its state


def is_remote(source: str | None) -> TypeGuard[str]:
    """Whether a source of a job is fetched before it is read."""
    return source is not None and locality_of(source) in FETCHED


def cached(uri: str) -> Path | None:
    """Place of what this machine has of an address; None when it has nothing, or not all of it. No request is made."""
    if hub.is_hub(uri):
        return hub.cached(uri)
    newest = _cache(uri) / _NEWEST
    place = Path(newest.read_text(encoding="utf-8")) if newest.is_file() else None
    return place if place is not None and _directory(place).exists() else None


def fetch(uri: str, say: Callable[[str], None]) -> Path:
    """Place on this machine of what is at an address now, downloaded when it isn't there.

    Raises ConfigError for what isn't there or not for this user, InfraError when it can't be reached.
    """
    if hub.is_hub(uri):
        return hub.fetch(uri, say)
    store, name = _folder(uri, None)
    objects = _objects(store, name)
    root = _cache(uri)
    place = root / hashlib.sha256(json.dumps(objects, sort_keys=True).encode()).hexdigest()[:16] / name
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:  # of two runs that start at once, one downloads
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{uri} is being downloaded by another run: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)  # its requests have deadlines, and a process that ends lets go
        if not _directory(place).exists():
            say(f"downloading {uri}: {_in_words(objects)}")
            _install(store, name, objects, place)
        write_atomically(root / _NEWEST, str(place).encode())
    return place


def download(uri: str, target: Path, credentials: Path | None) -> str:
    """Download what is at an address to `target`, whole or not at all; answers what it is, in words.

    Args:
        target: for a pattern, the pattern in a directory that isn't there yet. One that is there is not looked at.
        credentials: as `ObjectStore.connect` takes them; the hub's token is the environment's.
    """
    if hub.is_hub(uri):
        return hub.download(uri, target)
    if not _directory(target).exists():
        store, name = _folder(uri, credentials)
        objects = _objects(store, name)
        _install(store, name, objects, target)
        return f"{uri}: {_in_words(objects)}"
    return f"{uri}: fetched before"


def _cache(uri: str) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "areal" / "fetched"
    return root / hashlib.sha256(uri.encode()).hexdigest()[:16]


def _directory(target: Path) -> Path:
    """The part of a target that is there or not: of a pattern the folder of its files."""
    return target.parent if is_pattern(target.name) else target


def _folder(uri: str, credentials: Path | None) -> tuple[ObjectStore, str]:
    """The store below the folder of an address, and the address's own name in it."""
    folder, _, name = uri.rstrip("/").rpartition("/")
    if not folder.partition("://")[2]:
        raise ConfigError(f"{uri} names a whole bucket", fix="Name an object, or a prefix of several, in the bucket.")
    return ObjectStore.connect(folder, credentials), name


def _objects(store: ObjectStore, name: str) -> Objects:
    """What an address stands for. Of a model's files those that are read, as the hub's are chosen."""
    if is_pattern(name):
        found = {key: mark for key, mark in store.entries("").items() if "/" not in key and fnmatch(key, name)}
    elif (one := store.stat(name)) is not None:
        return {name: one}
    else:
        found = store.entries(f"{name}/")
        if f"{name}/config.json" in found:
            wanted = [f"{name}/{pattern}" for pattern in hub.FILES]
            found = {key: mark for key, mark in found.items() if any(PurePosixPath(key).match(one) for one in wanted)}
    odd = [key for key in found if ".." in PurePosixPath(key).parts or key.startswith("/")]
    if odd or not found:
        words = (
            f"has a name that leaves its folder: {odd[0]}"
            if odd
            else "isn't there: no object has that name or lies below"
        )
        raise ConfigError(f"{store.url}/{name} {words}", fix="Correct the address, or what lies there")
    return found


def _install(store: ObjectStore, name: str, objects: Objects, target: Path) -> None:
    """Download objects to `target`; files that an earlier try left whole are kept while the store is as it was.

    Beside it, NAME.json has every object's size, and the store's mark of its state.
    """
    directory = _directory(target)
    partial, record = directory.with_name(f".{directory.name}.part"), directory.with_name(f"{directory.name}.json")
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        told = json.dumps({"uri": f"{store.url}/{name}", "files": objects}, indent=1, sort_keys=True).encode()
        if not record.is_file() or record.read_bytes() != told:
            shutil.rmtree(partial, ignore_errors=True)
            write_atomically(record, told)
        for key, (size, _) in objects.items():
            file = partial / key
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_file() and file.stat().st_size == size:
                continue
            with file.open("wb") as out:
                out.writelines(store.blocks(key, 0, size))
                out.flush()
                os.fsync(out.fileno())
        if _objects(store, name) != objects:
            raise DataError(f"{store.url}/{name} changed while it was downloaded", fix="start again")
        (partial if directory != target else partial / name).rename(directory)
        shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise InfraError(f"{store.url}/{name} can't be kept here: {error}", fix="See to the disk's space.") from error


def _in_words(objects: Objects) -> str:
    many = f"{len(objects)} files" if len(objects) > 1 else "one file"
    return f"{many}, {show_bytes(sum(size for size, _ in objects.values()))}"
