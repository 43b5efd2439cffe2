"""What is known of one resource: a read-only copy of the server's objects, with indices.

Owns the rule that it never goes back in time: an object is replaced by a newer version of itself only, our own writes
are in it as soon as the server answered, and objects that vanished between two lists are reported as changes too.
Versions of one resource are compared as numbers, as Kubernetes defines them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from areal.operator.runtime.resources import Json, Key, Resource, key_of
from areal.plan.cluster_names import LABEL_JOB

Changed = Callable[[Json], None]
_Entry = TypeVar("_Entry")


class Cache:
    """Objects of one resource. Nobody changes an object that is in it.

    `on_change` sees each object that came, changed or went (as it last was), and both sides of a change of labels.
    `scopes` are the namespaces that are listed apart, ("",) when one list covers all. With `labelled_only`, the lists
    select by the job label, so an own write without that label is not kept either.
    """

    def __init__(
        self,
        resource: Resource,
        on_change: Changed = lambda obj: None,
        *,
        scopes: Iterable[str] = ("",),
        labelled_only: bool = False,
    ) -> None:
        self.resource = resource
        self.labelled_only = labelled_only
        self._on_change = on_change
        self._unlisted = set(scopes)
        self._all_listed = asyncio.Event()
        self._objects: dict[Key, Json] = {}
        self._by_owner: dict[str, set[Key]] = {}
        self._by_job: dict[Key, set[Key]] = {}
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
        return len(self._objects)

    def get(self, namespace: str, name: str) -> Json | None:
        """The object of this name ("" is the namespace of what has none)."""
        return self._objects.get((namespace, name))

    def all(self) -> Iterable[Json]:
        """Every object, in no order. Safe from any thread."""
        return tuple(self._objects.values())

    def owned_by(self, uid: str) -> list[Json]:
        """Objects with an ownerReference to `uid`, by namespace and name."""
        return [self._objects[key] for key in sorted(self._by_owner.get(uid, ()))]

    def labelled(self, namespace: str, rljob: str) -> list[Json]:
        """Objects of the namespace that carry the label `areal.dev/rljob=<rljob>`, by name."""
        return [self._objects[key] for key in sorted(self._by_job.get((namespace, rljob), ()))]

    # What streams and writes tell. Each returns at once and calls `on_change` for what is new.

    def offer(self, obj: Json) -> None:
        """The server stores, or stored, this: kept unless something newer is known."""
        uid, key = _uid(obj), key_of(obj)
        if uid in self._gone or (self.labelled_only and LABEL_JOB not in _labels(obj)):
            return
        known = self._objects.get(key)
        if known is not None:
            newer = version_of(obj) > version_of(known)
            if not newer and (uid == _uid(known) or version_of(obj) < version_of(known)):
                return
        self._put(key, obj, known)

    def removed(self, obj: Json) -> None:
        """The server's stream says that this object is no more (or no longer selected)."""
        self._gone.pop(_uid(obj), None)
        known = self._objects.get(key_of(obj))
        if known is not None and _uid(known) == _uid(obj):
            self._drop(key_of(obj), known)

    def gone(self, key: Key, uid: str) -> None:
        """Our own delete says that the object with this uid is no more: late news of its life is ignored."""
        known = self._objects.get(key)
        if not uid or known is None or _uid(known) != uid:
            return  # not here (yet): should an old change still arrive, its end follows in the same stream
        self._gone[uid] = key[0]
        self._drop(key, known)

    def replace(self, scope: str, listed: Iterable[Json], version: int, *, rewound: bool = False) -> None:
        """A whole list of a scope at a version: what it lacks is gone, unless we wrote it after that version.

        With `rewound`, the server itself went back in time (restored from a backup): the list is the truth.
        """
        found = {key_of(obj): obj for obj in listed}
        for key, known in list(self._within(scope)):
            if key not in found and (rewound or version_of(known) <= version):
                self._drop(key, known)
        listed_uids = set() if rewound else {_uid(obj) for obj in found.values()}
        for uid in [uid for uid, namespace in self._gone.items() if scope in ("", namespace)]:
            if uid not in listed_uids:
                del self._gone[uid]
        for key, obj in found.items():
            if rewound:
                self._put(key, obj, self._objects.get(key))
            else:
                self.offer(obj)
        self._unlisted.discard(scope)
        if not self._unlisted:
            self._all_listed.set()

    def _within(self, scope: str) -> Iterator[tuple[Key, Json]]:
        return ((key, obj) for key, obj in self._objects.items() if not scope or key[0] == scope)

    def _put(self, key: Key, obj: Json, known: Json | None) -> None:
        obj["metadata"].pop("managedFields", None)  # half of an object's size, and nobody here reads it
        if known is not None:
            self._unindex(key, known)
        self._objects[key] = obj
        for uid in _owners(obj):
            self._by_owner.setdefault(uid, set()).add(key)
        if job := _labels(obj).get(LABEL_JOB):
            self._by_job.setdefault((key[0], job), set()).add(key)
        self._on_change(obj)
        if known is not None and _labels(known) != _labels(obj):
            self._on_change(known)

    def _drop(self, key: Key, known: Json) -> None:
        self._unindex(key, known)
        del self._objects[key]
        self._on_change(known)

    def _unindex(self, key: Key, known: Json) -> None:
        for uid in _owners(known):
            _discard(self._by_owner, uid, key)
        if job := _labels(known).get(LABEL_JOB):
            _discard(self._by_job, (key[0], job), key)


def _discard(index: dict[_Entry, set[Key]], entry: _Entry, key: Key) -> None:
    keys = index.get(entry)
    if keys is not None:
        keys.discard(key)
        if not keys:
            del index[entry]


def version_of(obj: Json) -> int:
    """The resourceVersion as a number."""
    return int(obj["metadata"].get("resourceVersion") or 0)


def _uid(obj: Json) -> str:
    return str(obj["metadata"].get("uid", ""))


def _labels(obj: Json) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _owners(obj: Json) -> list[str]:
    return [owner["uid"] for owner in obj["metadata"].get("ownerReferences") or ()]
