"""The runtime against a server over real connections: the same cases for the fake one and a real kube-apiserver."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from areal.plan.cluster_names import LABEL_JOB
from areal_operator.kube.errors import AlreadyExistsError, ConflictError, GoneError, InvalidError, NotFoundError
from areal_operator.kube.resources import CONFIGMAPS, EVENTS, Json
from areal_operator.runtime.api import MANAGER, STATUS_MANAGER, Api
from areal_operator.runtime.cache import Cache
from areal_operator.runtime.events import Recorder
from areal_operator.runtime.lease import Election, LeaseStore, LeaseTimes
from areal_operator.runtime.reflector import Reflector, WatchTimes
from areal_operator.runtime.transport import Request, connect
from support.fake_kube import FakeKube
from support.fake_kube_fronts import serve
from support.tcp_proxy import TcpProxy

SHORT = WatchTimes(shortest_s=2, longest_s=2, margin_s=1, page=2, first_backoff_s=0.05, longest_backoff_s=0.5)
LONG = WatchTimes(page=2, first_backoff_s=0.05, longest_backoff_s=0.5)


@dataclass
class Server:
    """A server, and what the tests may do to it."""

    kubeconfig: Path
    namespace: str
    forget: Callable[[], None]  # all history and continue tokens are too old afterwards
    real: bool
    directory: Path
    _open: list[Api] = field(default_factory=list)

    async def api(self, kubeconfig: Path | None = None, **arguments: Any) -> Api:
        """A client with its own connections."""
        made = Api(await connect(kubeconfig or self.kubeconfig), **arguments)
        self._open.append(made)
        return made

    async def through(self, proxy: TcpProxy, **arguments: Any) -> Api:
        """A client behind a proxy."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"{self.url.scheme}://127.0.0.1:{proxy.port}"
        path = self.directory / "through-a-proxy"
        path.write_text(json.dumps(config))
        return await self.api(path, **arguments)

    @property
    def url(self) -> Any:
        config = yaml.safe_load(self.kubeconfig.read_text())
        return urlsplit(config["clusters"][0]["cluster"]["server"])

    async def close(self) -> None:
        for api in self._open:
            await api.close()


@pytest.fixture(
    params=[pytest.param("fake", marks=pytest.mark.component), pytest.param("real", marks=pytest.mark.kube_api)]
)
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    if request.param == "fake":
        fake = FakeKube(bookmark_s=1.0)
        async with serve(fake, tmp_path) as kubeconfig:
            made = Server(kubeconfig, "ns", fake.forget, False, tmp_path)
            yield made
            await made.close()
        return
    control_plane = request.getfixturevalue("control_plane")

    def forget() -> None:
        control_plane.compact()
        control_plane.restart_apiserver()

    made = Server(control_plane.kubeconfig, request.getfixturevalue("namespace"), forget, True, tmp_path)
    yield made
    await made.close()


def config_map(namespace: str, name: str, value: str = "0", **metadata: Any) -> Json:
    labels = {LABEL_JOB: "contract"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, **metadata},
        "data": {"value": value},
    }


@dataclass
class Follower:
    """A cache that follows the server, and what it told."""

    cache: Cache
    reflector: Reflector
    told: list[tuple[str, str]]
    task: asyncio.Task[None]

    def held(self) -> dict[str, str]:
        return {obj["metadata"]["name"]: obj["data"]["value"] for obj in self.cache.all()}

    async def becomes(self, expected: dict[str, str]) -> None:
        await until(lambda: self.held() == expected, lambda: f"{self.held()} is not {expected}")

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def until(probe: Callable[[], object], what: Callable[[], str], limit_s: float = 30.0) -> None:
    ends = time.monotonic() + limit_s
    while not probe():
        assert time.monotonic() < ends, what()
        await asyncio.sleep(0.02)


async def follow(api: Api, namespace: str, times: WatchTimes) -> Follower:
    told: list[tuple[str, str]] = []
    cache = Cache(
        CONFIGMAPS,
        lambda obj: told.append((obj["metadata"]["name"], obj["data"]["value"])),
        scopes=(namespace,),
        labelled_only=True,
    )
    reflector = Reflector(api, cache, scope=namespace, times=times)
    follower = Follower(cache, reflector, told, asyncio.create_task(reflector.run()))
    await cache.wait_synced()
    return follower


async def test_every_verb_means_the_same(server: Server) -> None:
    api, space = await server.api(), server.namespace
    assert await api.get(CONFIGMAPS, space, "a") is None
    made = await api.create(CONFIGMAPS, config_map(space, "a"))
    with pytest.raises(AlreadyExistsError):
        await api.create(CONFIGMAPS, config_map(space, "a"))
    same = await api.apply(config_map(space, "a"), manager=MANAGER)
    again = await api.apply(config_map(space, "a"), manager=MANAGER)
    assert same["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"], "nothing changed, no version"
    tried = await api.apply(config_map(space, "a", "tried"), manager=MANAGER, dry_run=True)
    assert tried["data"] == {"value": "tried"}
    changed = await api.apply(config_map(space, "a", "1"), manager=MANAGER)
    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert (await api.get(CONFIGMAPS, space, "a"))["data"] == {"value": "1"}
    with pytest.raises(ConflictError):
        await api.apply(config_map(space, "a", uid="00000000-0000-0000-0000-000000000000"), manager=MANAGER)
    with pytest.raises(NotFoundError):
        await api.merge(CONFIGMAPS, space, "absent", {"data": {"value": "1"}})
    assert not await api.delete(CONFIGMAPS, space, "a", uid="00000000-0000-0000-0000-000000000000")
    assert await api.delete(CONFIGMAPS, space, "a", uid=made["metadata"]["uid"])
    assert not await api.delete(CONFIGMAPS, space, "a")


async def test_a_list_has_all_pages_and_only_what_is_selected(server: Server) -> None:
    api = await server.api(page=2)
    for index in range(5):
        await api.create(CONFIGMAPS, config_map(server.namespace, f"m{index}"))
    other = config_map(server.namespace, "other")
    del other["metadata"]["labels"]
    await api.create(CONFIGMAPS, other)
    found = await api.list(CONFIGMAPS, server.namespace, labels=LABEL_JOB)
    assert [obj["metadata"]["name"] for obj in found] == ["m0", "m1", "m2", "m3", "m4"]
    assert {(obj["apiVersion"], obj["kind"]) for obj in found} == {("v1", "ConfigMap")}


async def test_a_cache_follows_what_others_do_and_knows_own_writes_at_once(server: Server) -> None:
    others = await server.api()
    for index in range(3):
        await others.create(CONFIGMAPS, config_map(server.namespace, f"m{index}"))
    api = await server.api()
    follower = await follow(api, server.namespace, SHORT)
    assert follower.held() == {"m0": "0", "m1": "0", "m2": "0"}
    api.caches = {CONFIGMAPS: follower.cache}
    await others.apply(config_map(server.namespace, "m1", "1"), manager="others")
    await others.delete(CONFIGMAPS, server.namespace, "m2")
    await follower.becomes({"m0": "0", "m1": "1"})
    for value in range(20):
        await api.apply(config_map(server.namespace, "mine", str(value)), manager=MANAGER)
        assert follower.held()["mine"] == str(value)
    await api.delete(CONFIGMAPS, server.namespace, "mine")
    assert "mine" not in follower.held()
    await until(lambda: follower.reflector.pulse.restarts.get("ended", 0) >= 2, lambda: "the watch never ended")
    assert follower.held() == {"m0": "0", "m1": "1"}
    assert follower.told.count(("mine", "7")) == 1, "the watch's echo of an own write is no news"
    await follower.stop()


async def test_after_410_the_list_finds_what_happened_meanwhile(server: Server) -> None:
    others, api = await server.api(), await server.api()
    await others.create(CONFIGMAPS, config_map(server.namespace, "stays"))
    await others.create(CONFIGMAPS, config_map(server.namespace, "goes", "last"))
    follower = await follow(api, server.namespace, LONG)
    await follower.stop()  # as if cut off
    state = follower.reflector.state
    await others.delete(CONFIGMAPS, server.namespace, "goes")
    await others.create(CONFIGMAPS, config_map(server.namespace, "came"))
    server.forget()
    follower.told.clear()
    follower.reflector.state = state
    follower.task = asyncio.create_task(follower.reflector.run())
    await follower.becomes({"stays": "0", "came": "0"})
    assert sorted(follower.told) == [("came", "0"), ("goes", "last")]
    assert follower.reflector.pulse.restarts.get("expired") == 1
    await follower.stop()


async def test_a_continue_token_expires_and_the_list_begins_anew(server: Server) -> None:
    api = await server.api(page=2)
    for index in range(5):
        await api.create(CONFIGMAPS, config_map(server.namespace, f"m{index}"))
    path, query = CONFIGMAPS.path(server.namespace), {"limit": "2", "labelSelector": LABEL_JOB}
    page = await api.fetch(Request("GET", path, query), deadline_s=10)
    server.forget()
    with pytest.raises(GoneError):
        await api.fetch(Request("GET", path, query | {"continue": page["metadata"]["continue"]}), deadline_s=10)
    assert len(await api.list(CONFIGMAPS, server.namespace, labels=LABEL_JOB)) == 5


async def test_a_connection_that_falls_silent_is_noticed_and_one_that_is_reset_too(server: Server) -> None:
    others = await server.api()
    async with TcpProxy(server.url.port) as proxy:
        follower = await follow(await server.through(proxy), server.namespace, SHORT)
        await others.create(CONFIGMAPS, config_map(server.namespace, "before"))
        await follower.becomes({"before": "0"})
        proxy.silent = True
        await others.create(CONFIGMAPS, config_map(server.namespace, "during"))
        await until(lambda: follower.reflector.pulse.restarts.get("broken"), lambda: "silence was not noticed")
        assert "during" not in follower.held()
        proxy.silent = False
        await follower.becomes({"before": "0", "during": "0"})
        broken = follower.reflector.pulse.restarts["broken"]
        proxy.hang_up()
        await others.create(CONFIGMAPS, config_map(server.namespace, "after"))
        await follower.becomes({"before": "0", "during": "0", "after": "0"})
        assert follower.reflector.pulse.restarts["broken"] > broken
        await follower.stop()


async def test_of_two_contenders_one_leads_and_its_successor_follows_a_release(server: Server) -> None:
    times = LeaseTimes(duration_s=3, renew_s=2, retry_s=0.1)
    contenders = [
        Election(LeaseStore(await server.api(), server.namespace, "contract"), identity, times=times)
        for identity in ("a", "b")
    ]
    first, second = contenders
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(0.5)
    assert (first.leads, second.leads, second.holder) == (True, False, "a")
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    await first.release()
    await asyncio.wait_for(waiting, 60)
    assert (first.leads, second.leads) == (False, True)


async def test_an_event_said_twice_is_one_event_with_a_count(server: Server) -> None:
    api = await server.api()
    about = await api.create(CONFIGMAPS, config_map(server.namespace, "about"))
    recorder = Recorder(api, instance="contract")
    for _ in range(2):
        await recorder.event(about, type="Warning", reason="Refused", message="ä" * 3000)
    events = await api.list(EVENTS, server.namespace)
    (event,) = [event for event in events if event["regarding"]["name"] == "about"]
    assert (event["series"]["count"], event["reason"], recorder.dropped) == (2, "Refused", 0)


# What only a real server can answer.


@pytest.fixture
async def real(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    control_plane = request.getfixturevalue("control_plane")
    request.getfixturevalue("crds")
    made = Server(control_plane.kubeconfig, request.getfixturevalue("namespace"), lambda: None, True, tmp_path)
    yield made
    await made.close()


@pytest.mark.kube_api
async def test_what_the_schema_does_not_know_is_refused_with_its_name(real: Server) -> None:
    """A built-in type's unknown field and an entry given twice are the object's fault, though the server says 500."""
    api = await real.api()
    typo = {**config_map(real.namespace, "a"), "dataa": {}}
    with pytest.raises(InvalidError, match="dataa"):
        await api.apply(typo, manager=MANAGER)
    with pytest.raises(InvalidError, match="dataa"):
        await api.apply(typo, manager=MANAGER, dry_run=True)
    with pytest.raises(InvalidError, match="dataa"):
        await api.create(CONFIGMAPS, typo)
    port = {"name": "grpc", "port": 9000, "protocol": "TCP"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": real.namespace}}
    with pytest.raises(InvalidError, match="9000"):
        await api.apply({**service, "spec": {"ports": [port, {**port, "name": "again"}]}}, manager=MANAGER)
    job = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "a", "namespace": real.namespace}}
    with pytest.raises(InvalidError, match="algorythm"):
        await api.apply({**job, "spec": {"algorythm": {}}}, manager=MANAGER)


@pytest.mark.kube_api
async def test_two_managers_share_an_object_and_each_takes_only_its_own_fields_away(real: Server) -> None:
    api = await real.api()
    base = config_map(real.namespace, "shared")
    await api.apply({**base, "data": {"mine": "1", "value": "0"}}, manager=MANAGER)
    await api.apply({**base, "data": {"theirs": "1"}}, manager=STATUS_MANAGER)
    left = await api.apply({**base, "data": {"value": "0"}}, manager=MANAGER)
    assert left["data"] == {"value": "0", "theirs": "1"}
    forced = await api.apply({**base, "data": {"value": "forced", "theirs": "1"}}, manager=STATUS_MANAGER)
    assert forced["data"] == {"value": "forced", "theirs": "1"}
    assert (await api.get(CONFIGMAPS, real.namespace, "shared"))["data"]["value"] == "forced"


@pytest.mark.kube_api
async def test_an_api_server_that_restarts_is_followed_on(real: Server, control_plane: Any) -> None:
    others, api = await real.api(), await real.api()
    follower = await follow(api, real.namespace, LONG)
    await others.create(CONFIGMAPS, config_map(real.namespace, "before"))
    await follower.becomes({"before": "0"})
    control_plane.restart_apiserver(kill=True)
    await others.apply(config_map(real.namespace, "after"), manager="others")
    await follower.becomes({"before": "0", "after": "0"})
    assert follower.reflector.pulse.restarts
    await follower.stop()


@pytest.mark.kube_api
async def test_a_list_in_many_pages_misses_nothing_that_changes_meanwhile(real: Server) -> None:
    others, api = await real.api(), await real.api()
    others_turn = [f"m{index:03}" for index in range(60)]
    await asyncio.gather(*(others.create(CONFIGMAPS, config_map(real.namespace, name)) for name in others_turn))
    following = asyncio.create_task(follow(api, real.namespace, LONG))
    for name in others_turn[::3]:
        await others.delete(CONFIGMAPS, real.namespace, name)
    follower = await following
    left = {name: "0" for index, name in enumerate(others_turn) if index % 3}
    await follower.becomes(left)
    assert follower.held() == left
    await follower.stop()
