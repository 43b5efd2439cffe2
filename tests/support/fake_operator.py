"""One operator process on a fake cluster: the real reconcile, whose requests may be lost, refused, or its last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from areal_operator.kube.errors import AlreadyExistsError, ApiError, UnreachableError
from areal_operator.kube.resources import Json, Key, Resource
from areal_operator.operator.reconcile import reconcile
from areal_operator.operator.world import OperatorSettings, OperatorWorld
from support.fake_cluster import FakeCluster
from support.fake_roles import FakeRoles
from support.small_children import SmallChildren

Trouble = Literal["", "unsent", "unanswered", "dies before", "dies after"]


class ProcessDiedError(Exception):
    """The operator is no more, in the middle of whatever it did."""


@dataclass(frozen=True)
class Write:
    """One request that changes something."""

    verb: Literal["create", "apply", "merge", "delete"]
    kind: str
    name: str
    uid: str | None = None
    force: bool = False
    obj: Json | None = None


class FakeOperator:
    """A process, until it dies. `trouble` is asked before each request what goes wrong with it."""

    def __init__(
        self,
        cluster: FakeCluster,
        trouble: Callable[[], Trouble] = lambda: "",
        *,
        settings: OperatorSettings | None = None,
        build: Any = None,
    ) -> None:
        self.cluster = cluster
        self.writes: list[Write] = []
        self.events: list[tuple[str, str, str]] = []
        self.refusals: dict[str, ApiError] = {}  # kind → what the server says to it
        self.only_status = False  # a process that has lost its lease: its last request may be a status
        self._trouble = trouble
        self._dead = False  # what it sent beside its last request isn't sent either
        cluster.forget_caches()
        self.roles = FakeRoles(cluster)
        self.world = OperatorWorld(
            self, cluster.caches, self, self.roles, lambda: cluster.now, settings or OperatorSettings("cpu"),
            build=build or SmallChildren(),
        )  # fmt: skip
        cluster.on_pod_gone = self.world.deleted_pods.add

    async def reconcile(self, key: Key) -> float | None:
        """One look."""
        return await reconcile(key, self.world)

    # The server, as this process sees it.

    async def get(self, resource: Resource, namespace: str, name: str, *, metadata_only: bool = False) -> Json | None:
        self._before()
        return await self.cluster.api.get(resource, namespace, name)

    async def list(self, resource: Resource, namespace: str, *, labels: str) -> list[Json]:
        self._before()
        if resource.kind in self.refusals:
            raise self.refusals[resource.kind]
        key, _, value = labels.partition("=")
        found = self.cluster.api.all(resource.kind)
        return [one for one in found if one["metadata"].get("labels", {}).get(key) == value]

    async def create(self, resource: Resource, obj: Json, *, dry_run: bool = False) -> Json:
        after = self._before()
        if dry_run:
            if resource.kind in self.refusals:
                raise self.refusals[resource.kind]
            if self.cluster.api.objects.get((resource.kind, obj["metadata"]["namespace"], obj["metadata"]["name"])):
                raise AlreadyExistsError(409, "AlreadyExists", f"{obj['metadata']['name']} already exists")
            return obj
        if self.only_status:
            raise ProcessDiedError
        self.writes.append(Write("create", resource.kind, obj["metadata"]["name"], obj=obj))
        return self._after(after, await self.cluster.api.create(resource, obj))

    async def apply(self, obj: Json, *, manager: str, dry_run: bool = False, subresource: str = "") -> Json:
        after = self._before()
        if self.only_status and not subresource:
            raise ProcessDiedError
        if not subresource and obj["kind"] in self.refusals:
            raise self.refusals[obj["kind"]]
        if not dry_run:
            self.writes.append(Write("apply", obj["kind"], obj["metadata"]["name"], obj=obj))
        made = await self.cluster.api.apply(obj, manager=manager, dry_run=dry_run, subresource=subresource)
        return made if dry_run else self._after(after, made)

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Json, *, subresource: str = "") -> Json:
        after = self._before()
        if self.only_status:
            raise ProcessDiedError
        self.writes.append(Write("merge", resource.kind, name, obj=patch))
        merged = await self.cluster.api.merge(resource, namespace, name, patch, subresource=subresource)
        return self._after(after, merged)  # type: ignore[no-any-return]

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
        after = self._before()
        if self.only_status:
            raise ProcessDiedError
        self.writes.append(Write("delete", resource.kind, name, uid, grace_s == 0))
        done = await self.cluster.api.delete(resource, namespace, name, uid=uid, grace_s=grace_s, background=background)
        self._after(after, None)
        return done

    async def event(self, about: Json, *, type: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        self.events.append((type, reason, message))

    def _before(self) -> Trouble:
        if self._dead:
            raise ProcessDiedError
        trouble = self._trouble()
        if trouble == "unsent":
            raise UnreachableError("the request was lost")
        if trouble == "dies before":
            self._dead = True
            raise ProcessDiedError
        return trouble

    def _after(self, trouble: Trouble, made: Json | None) -> Any:
        if trouble == "unanswered":
            raise UnreachableError("the answer was lost")
        if trouble == "dies after":
            self._dead = True
            raise ProcessDiedError
        if made is not None:
            self.cluster.wrote(made)
        return made
