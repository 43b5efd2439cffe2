"""Cache of one resource: a read-only copy of the server's objects, with indices.

Owns the rule that it never goes back in time: an object is replaced by a newer version of itself only, our own writes
are in it as soon as the server answered, and objects that vanished between two lists are reported as changes too.
Versions of one resource are compared as numbers, as Kubernetes defines them. Objects are kept as compressed JSON, a
tenth of their size as dicts: a reconcile reads some forty of them, which costs it a millisecond or two.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import orjson
from areal.plan.cluster_names import LABEL_JOB

from areal_operator.kube.resources import Json, Key, Resource, key_of

Changed = Callable[[Json], None]
_Term = tuple[str, ...]  # by what an object is found: a word for the index, then a value


@dataclass(frozen=True, slots=True)
class _CacheEntry:
    """One object as compressed text."""

    uid: str
    version: int
    text: bytes

    def object(self) -> Json:
        found: Json = orjson.loads(zlib.decompress(self.text))
        return found


class Cache:
    """Objects of one resource. Whoever asks for one gets a copy of their own.

    `on_change` sees each object that came, changed or went (as it last was), and both sides of a change of labels;
    `on_gone` sees before it the last state of each object that went. `index` gives the value by which `indexed` finds
    an object, "" for none; `project` what is kept of one.
    `scopes` are the namespaces that are listed apart, ("",) when one list covers all. With `labelled_only`, the lists
    select by the job label, so an own write without that label is not kept either.
    """

    def __init__(
        self,
        resource: Resource,
        on_change: Changed = lambda obj: None,
        *,
        on_gone: Changed = lambda obj: None,
        index: Callable[[Json], str] = lambda obj: "",
        project: Callable[[Json], Json] = lambda obj: obj,
        scopes: Iterable[str] = ("",),
        labelled_only: bool = False,
    ) -> None:
        self.resource = resource
        self.labelled_only = labelled_only
        self.denied = ""  # why an optional resource counts as empty, in the server's words
        self._on_change = on_change
        self._on_gone = on_gone
        self._index = index
        self._project = project
        self._unlisted = set(scopes)
        self._all_listed = asyncio.Event()
        self._kept: dict[Key, _CacheEntry] = {}
        self._found_by: dict[_Term, set[Key]] = {}
        self._gone: dict[str, str] = {}  # uid → namespace of what our own delete ended, until the stream says so too

    @property
    def selector(self) -> str:
        """The label selector of lists and watches."""
        return LABEL_JOB if self.labelled_only else ""

    @property
    def synced(self) -> bool:
        """Whether every scope has been listed once."""
        return not self._unlisted

    async def wait_synced(self) -> None:
        """Return when every scope has been listed once."""
        await self._all_listed.wait()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, namespace: str, name: str) -> Json | None:
        """The object of this name ("" is the namespace of what has none)."""
        found = self._kept.get((namespace, name))
        return None if found is None else found.object()

    def all(self) -> Iterable[Json]:
        """Every object, in no order. Safe from any thread."""
        return (kept.object() for kept in tuple(self._kept.values()))

    def owned_by(self, uid: str) -> list[Json]:
        """Objects with an ownerReference to `uid`, by namespace and name."""
        return self._found("owner", uid)

    def versions(self, uid: str) -> list[tuple[Key, str, int]]:
        """Name, uid and version of each object with an ownerReference to `uid`: cheap, and changes when any does."""
        keys = sorted(self._found_by.get(("owner", uid), ()))
        return [(key, self._kept[key].uid, self._kept[key].version) for key in keys]

    def labelled(self, namespace: str, rljob: str) -> list[Json]:
        """Objects of the namespace that carry the label `areal.dev/rljob=<rljob>`, by name."""
        return self._found("job", namespace, rljob)

    def indexed(self, value: str) -> list[Json]:
        """Objects of which `index` gives this value, by namespace and name."""
        return self._found("index", value)

    def _found(self, *term: str) -> list[Json]:
        return [self._kept[key].object() for key in sorted(self._found_by.get(term, ()))]

    # What streams and writes tell. Each returns at once and calls `on_change` for what is new.

    def offer(self, obj: Json) -> None:
        """The server stores, or stored, this: kept unless something newer is known."""
        uid, key = _uid(obj), key_of(obj)
        if uid in self._gone or (self.labelled_only and LABEL_JOB not in _labels(obj)):
            return
        known = self._kept.get(key)
        if known is not None:
            newer = version_of(obj) > known.version
            if not newer and (uid == known.uid or version_of(obj) < known.version):
                return
        self._put(key, obj, known)

    def removed(self, obj: Json) -> None:
        """The server's stream says that this object is no more (or no longer selected)."""
        self._gone.pop(_uid(obj), None)
        known = self._kept.get(key_of(obj))
        if known is not None and known.uid == _uid(obj):
            self._drop(key_of(obj), known, last=obj)

    def gone(self, key: Key, uid: str) -> None:
        """Our own delete says that the object with this uid is no more: late news of its life is ignored."""
        known = self._kept.get(key)
        if not uid or known is None or known.uid != uid:
            return  # not here (yet): should an old change still arrive, its end follows in the same stream
        self._gone[uid] = key[0]
        self._drop(key, known)

    def replace(self, scope: str, listed: Iterable[Json], version: int, *, rewound: bool = False) -> None:
        """A whole list of a scope at a version: what it lacks is gone, unless we wrote it after that version.

        With `rewound`, the server itself went back in time (restored from a backup): the list is the truth.
        """
        found = {key_of(obj): obj for obj in listed}
        for key, known in list(self._within(scope)):
            if key not in found and (rewound or known.version <= version):
                self._drop(key, known)
        listed_uids = set() if rewound else {_uid(obj) for obj in found.values()}
        for uid in [uid for uid, namespace in self._gone.items() if scope in ("", namespace)]:
            if uid not in listed_uids:
                del self._gone[uid]
        for key, obj in found.items():
            if rewound:
                self._put(key, obj, self._kept.get(key))
            else:
                self.offer(obj)
        self._unlisted.discard(scope)
        if not self._unlisted:
            self._all_listed.set()

    def _within(self, scope: str) -> Iterator[tuple[Key, _CacheEntry]]:
        return ((key, kept) for key, kept in self._kept.items() if not scope or key[0] == scope)

    def _put(self, key: Key, obj: Json, kept: _CacheEntry | None) -> None:
        obj["metadata"].pop("managedFields", None)  # half of an object's size, and nobody here reads it
        obj = self._project(obj)
        known = None if kept is None else kept.object()
        if known is not None:
            self._unindex(key, known)
        self._kept[key] = _CacheEntry(_uid(obj), version_of(obj), zlib.compress(orjson.dumps(obj), zlib.Z_BEST_SPEED))
        for term in self._terms(obj):
            self._found_by.setdefault(term, set()).add(key)
        self._on_change(obj)
        if known is not None and _labels(known) != _labels(obj):
            self._on_change(known)

    def _drop(self, key: Key, kept: _CacheEntry, last: Json | None = None) -> None:
        known = kept.object()
        self._unindex(key, known)
        del self._kept[key]
        self._on_gone(known if last is None else last)
        self._on_change(known)

    def _unindex(self, key: Key, known: Json) -> None:
        for term in {*self._terms(known)}:
            self._found_by[term].remove(key)
            if not self._found_by[term]:
                del self._found_by[term]

    def _terms(self, obj: Json) -> Iterator[_Term]:
        for owner in obj["metadata"].get("ownerReferences") or ():
            yield "owner", owner["uid"]
        if job := _labels(obj).get(LABEL_JOB):
            yield "job", key_of(obj)[0], job
        if value := self._index(obj):
            yield "index", value


def version_of(obj: Json) -> int:
    """The resourceVersion as a number."""
    return int(obj["metadata"].get("resourceVersion") or 0)


def _uid(obj: Json) -> str:
    return str(obj["metadata"].get("uid", ""))


def _labels(obj: Json) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}
