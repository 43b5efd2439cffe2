"""A cache kept by one reflector from a fake API server, in virtual time."""

import asyncio
from dataclasses import dataclass, field

from areal_operator.kube.resources import CONFIGMAPS, key_of
from areal_operator.runtime.api import Api
from areal_operator.runtime.cache import Cache
from areal_operator.runtime.limiter import Limiter
from areal_operator.runtime.reflector import Reflector, WatchTimes
from support import virtual_time
from support.fake_kube import FakeKube
from support.fake_kube_fronts import MemoryTransport

NS = "ns"
TIMES = WatchTimes(page=3)


def config_map(name, value="0", namespace=NS, **labels):
    metadata = {"name": name, "namespace": namespace} | ({"labels": labels} if labels else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value}}


@dataclass
class Rig:
    """A server, a cache kept by one reflector, and what was told of changes."""

    fake: FakeKube = field(default_factory=FakeKube)
    scope: str = ""
    scopes: tuple[str, ...] = ("",)
    labelled_only: bool = False
    optional: bool = False
    told: list[tuple[str, str]] = field(default_factory=list)
    states: list[type] = field(default_factory=list)

    def __post_init__(self):
        self.cache = Cache(
            CONFIGMAPS,
            lambda obj: self.told.append((obj["metadata"]["name"], obj["data"]["value"])),
            scopes=self.scopes,
            labelled_only=self.labelled_only,
        )
        limiter = Limiter(1e6, 1000, virtual_time.now)
        self.api = Api(MemoryTransport(self.fake), limiter, caches={CONFIGMAPS: self.cache})
        self.reflector = Reflector(
            self.api,
            self.cache,
            scope=self.scope,
            optional=self.optional,
            times=TIMES,
            clock=virtual_time.now,
            uniform=lambda low, high: high,
        )

    async def follow(self):
        """As `Reflector.run`, with the states noted."""
        while True:
            self.states.append(type(self.reflector.state))
            self.reflector.state = await self.reflector.step(self.reflector.state)

    async def watched_for(self, seconds):
        task = asyncio.create_task(self.follow())
        await asyncio.sleep(seconds)
        await stopped(task)

    def held(self):
        return {key_of(obj): obj["data"]["value"] for obj in self.cache.all()}

    def truth(self):
        return {key_of(obj): obj["data"]["value"] for obj in self.fake.objects.values()}

    def asked(self, *, watch):
        return [request for request in self.fake.requests if bool(request.query.get("watch")) == watch]


async def stopped(task):
    task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError), result
