"""The API server as the operator's brain sees it: objects, versions, server-side apply, preconditions, ownership.

Owns just that: what an object is after each verb, and which verb is refused. No HTTP, no watch and no admission; other
writers (controllers, kubelets, users) change objects by `put` and `drop`.
tests/operator/operator/test_operator_fake_api.py runs the same cases against this one and against a real API server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from areal_operator.kube.errors import AlreadyExistsError, ConflictError, NotFoundError, error_of
from areal_operator.kube.resources import Json, Resource, resource_of

Place = tuple[str, str, str]  # kind, namespace, name

_HAS_STATUS = ("RLJob", "StatefulSet", "Deployment", "Job", "Pod", "Workload")
_GENERATIONS = ("RLJob", "StatefulSet", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget")
_KEYED = {"conditions": "type", "ownerReferences": "uid", "containers": "name", "initContainers": "name", "env": "name"}
"""Lists that server-side apply merges by a key. Others are replaced whole."""


class FakeApi:
    """One server. `on_change` hears of every stored change: ADDED, MODIFIED, DELETED and the object."""

    def __init__(
        self, stamp: Callable[[], str], on_change: Callable[[str, Json], None] = lambda kind, obj: None
    ) -> None:
        self.objects: dict[Place, Json] = {}
        self._kinds: dict[str, dict[Place, Json]] = {}
        self.on_change = on_change
        self._stamp = stamp
        self._applied: dict[tuple[Place, str], Json] = {}  # what each manager owns
        self._version = 1000
        self._uids = 0

    # The operator's verbs; `runtime.api.Api` says what they promise.

    async def get(self, resource: Resource, namespace: str, name: str, *, metadata_only: bool = False) -> Json | None:
        return self.objects.get((resource.kind, namespace, name))

    async def create(self, resource: Resource, obj: Json) -> Json:
        place = _place(obj)
        if place in self.objects:
            raise AlreadyExistsError(409, "AlreadyExists", f"{place[2]} already exists")
        return self.put(obj)

    async def apply(self, obj: Json, *, manager: str, dry_run: bool = False, subresource: str = "") -> Json:
        resource_of(obj)
        place = _place(obj)
        old = self.objects.get(place)
        asked = obj["metadata"]
        self._check(old, asked, subresource)
        if subresource:
            owned = {subresource: obj.get(subresource, {})}
        else:
            owned = {key: value for key, value in obj.items() if key != "status" or place[0] not in _HAS_STATUS}
            owned["metadata"] = {key: asked[key] for key in asked if key not in ("uid", "resourceVersion")}
        before = self._applied.get((place, manager), {})
        if old is not None and subresource and old.get(subresource) == before.get(subresource):
            new = {**old, **owned}  # nobody else has a word in it
        else:
            new = _merge(_prune(old, before, owned) if old is not None else {}, owned)
        if dry_run:
            metadata = {**new["metadata"], "uid": old["metadata"]["uid"] if old else "dry-run"}
            return {**new, "metadata": metadata}
        if old is not None and new == old:
            return old
        self._applied[place, manager] = owned
        return self.put(new)

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Json, *, subresource: str = "") -> Json:
        old = self.objects.get((resource.kind, namespace, name))
        self._check(old, {"name": name, **patch.get("metadata", {})}, subresource or "there")
        assert old is not None
        merged: Json = _merge_patch(old, {key: value for key, value in patch.items() if key in (subresource or patch)})
        return self.put(merged)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        grace_s: int | None = None,
        background: bool = True,
    ) -> bool:
        place = (resource.kind, namespace, name)
        old = self.objects.get(place)
        if old is None or (uid is not None and old["metadata"]["uid"] != uid):
            return False
        lingers = (resource.kind == "Pod" and grace_s != 0) or (not background and any(self.owned_by(old)))
        if not lingers:
            self.drop(place)
        elif "deletionTimestamp" not in old["metadata"]:
            self.put({**old, "metadata": {**old["metadata"], "deletionTimestamp": self._stamp()}})
        return True

    # What everybody else does.

    def put(self, obj: Json) -> Json:
        """Store an object: a new one gets an identity, a changed spec the next generation."""
        place = _place(obj)
        old = self.objects.get(place)
        self._version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self._version)}
        if old is None:
            self._uids += 1
            metadata |= {"uid": f"uid-{self._uids}", "creationTimestamp": self._stamp()}
            if place[0] in _GENERATIONS:
                metadata["generation"] = 1
        else:
            metadata |= {"uid": old["metadata"]["uid"], "creationTimestamp": old["metadata"]["creationTimestamp"]}
            if place[0] in _GENERATIONS:
                changed = obj.get("spec") != old.get("spec")
                metadata["generation"] = old["metadata"]["generation"] + changed
        stored = {**obj, "metadata": metadata}
        self.objects[place] = self._kinds.setdefault(place[0], {})[place] = stored
        self.on_change("MODIFIED" if old is not None else "ADDED", stored)
        return stored

    def drop(self, place: Place) -> None:
        """Remove an object, if it is there."""
        old = self.objects.pop(place, None)
        if old is None:
            return
        del self._kinds[place[0]][place]
        for key in [key for key in self._applied if key[0] == place]:
            del self._applied[key]
        self._version += 1
        self.on_change("DELETED", {**old, "metadata": {**old["metadata"], "resourceVersion": str(self._version)}})

    def all(self, kind: str) -> list[Json]:
        """Every object of a kind, in the order in which they were made."""
        return list(self._kinds.get(kind, {}).values())

    def owned_by(self, owner: Json) -> Iterator[Json]:
        """Objects with an ownerReference to this one."""
        uid = owner["metadata"]["uid"]
        for obj in list(self.objects.values()):
            if any(reference["uid"] == uid for reference in obj["metadata"].get("ownerReferences", ())):
                yield obj

    @staticmethod
    def _check(old: Json | None, asked: Json, subresource: str) -> None:
        if old is None and subresource:
            raise NotFoundError(404, "NotFound", f"{asked['name']} not found")
        if old is None and asked.get("uid"):
            raise ConflictError(409, "Conflict", f"{asked['name']} is not there")
        version = asked.get("resourceVersion")
        if old is not None and version and version != old["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", f"{asked['name']} is not of version {version}")
        if old is not None and asked.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise ConflictError(422, "Conflict", "metadata.uid: field is immutable")

    def refuse(self, code: int, reason: str, message: str) -> Exception:
        """An error as the operator gets it."""
        return error_of(code, {"reason": reason, "message": message}, what="PATCH")


def _place(obj: Json) -> Place:
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _merge_patch(old: Any, patch: Any) -> Any:
    """RFC 7396: maps merge, null removes, everything else is replaced."""
    if not isinstance(patch, dict):
        return patch
    kept = {key: value for key, value in (old if isinstance(old, dict) else {}).items() if key not in patch}
    known = old if isinstance(old, dict) else {}
    return {**kept, **{key: _merge_patch(known.get(key), value) for key, value in patch.items() if value is not None}}


def _merge(old: Any, new: Any, name: str = "") -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merge(old.get(key), value, key) for key, value in new.items()}}
    key = _KEYED.get(name)
    if key and isinstance(old, list) and isinstance(new, list):
        known = {item[key]: item for item in old}
        given = {item[key]: _merge(known.get(item[key]), item) for item in new}
        return [*(given.pop(item[key], item) for item in old), *given.values()]
    return new


def _prune(old: Any, owned: Any, new: Any, name: str = "") -> Any:
    """`old` without what its manager owned before and does not say any more."""
    if isinstance(old, dict) and isinstance(owned, dict) and isinstance(new, dict):
        return {
            key: _prune(value, owned[key], new[key], key) if key in owned and key in new else value
            for key, value in old.items()
            if key not in owned or key in new
        }
    key = _KEYED.get(name)
    if key and isinstance(old, list) and isinstance(owned, list) and isinstance(new, list):
        dropped = {item[key] for item in owned} - {item[key] for item in new}
        before, after = {item[key]: item for item in owned}, {item[key]: item for item in new}
        return [
            _prune(item, before[item[key]], after[item[key]]) if item[key] in before and item[key] in after else item
            for item in old
            if item[key] not in dropped
        ]
    return old
