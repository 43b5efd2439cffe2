"""Requests: what each verb sends, what each refusal means, how long a busy server is waited for."""

import asyncio

import pytest
from areal.errors import BugError
from areal_operator.kube.errors import (
    AlreadyExistsError,
    ApiError,
    BusyError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnreachableError,
    error_of,
)
from areal_operator.kube.resources import CLUSTER_RUNTIMES, CONFIGMAPS, DEPLOYMENTS, RLJOBS, resource_of
from areal_operator.runtime.api import Api
from areal_operator.runtime.limiter import Limiter
from support import virtual_time
from support.fake_kube import FakeKube, Fault
from support.fake_kube_fronts import MemoryTransport


def config_map(name, value="0", **metadata):
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "ns", **metadata},
        "data": {"value": value},
    }


def rig(**arguments):
    fake = FakeKube()
    return fake, Api(MemoryTransport(fake), Limiter(1e6, 1000, virtual_time.now), **arguments)


def elapsed():
    return round(virtual_time.now() - 1000.0, 1)


@pytest.mark.parametrize(
    ("resource", "arguments", "path"),
    [
        (CONFIGMAPS, ("ns", "a"), "/api/v1/namespaces/ns/configmaps/a"),
        (CONFIGMAPS, (), "/api/v1/configmaps"),
        (DEPLOYMENTS, ("ns",), "/apis/apps/v1/namespaces/ns/deployments"),
        (RLJOBS, ("ns", "a", "status"), "/apis/areal.dev/v1alpha1/namespaces/ns/rljobs/a/status"),
        (CLUSTER_RUNTIMES, ("ignored", "a"), "/apis/areal.dev/v1alpha1/clusterrlruntimes/a"),
        (CONFIGMAPS, ("ns", "../../secrets/s"), "/api/v1/namespaces/ns/configmaps/..%2F..%2Fsecrets%2Fs"),
    ],
)
def test_a_resource_knows_where_its_objects_are(resource, arguments, path):
    assert resource.path(*arguments) == path


def test_an_object_of_an_unknown_kind_is_a_bug():
    assert resource_of({"apiVersion": "apps/v1", "kind": "Deployment"}) is DEPLOYMENTS
    with pytest.raises(BugError, match="Gadget"):
        resource_of({"apiVersion": "v1", "kind": "Gadget"})


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (400, "BadRequest", InvalidError),
        (401, "Unauthorized", ForbiddenError),
        (403, "Forbidden", ForbiddenError),
        (404, "NotFound", NotFoundError),
        (409, "Conflict", ConflictError),
        (409, "AlreadyExists", AlreadyExistsError),
        (422, "Invalid", InvalidError),
        (429, "TooManyRequests", BusyError),
        (503, "ServiceUnavailable", BusyError),
        (500, "InternalError", ApiError),
    ],
)
def test_each_refusal_has_its_type_and_the_servers_words(status, reason, expected):
    error = error_of(status, {"reason": reason, "message": "spec.x: no", "details": {"name": "a"}}, what="PATCH /x")
    assert type(error) is expected
    assert (error.status, error.reason, error.message, error.details) == (
        status, reason, "PATCH /x: spec.x: no", {"name": "a"},
    )  # fmt: skip


def test_an_answer_that_is_not_kubernetes_still_becomes_an_error():
    error = error_of(502, {}, what="GET /x")
    assert (type(error), error.message, error.reason) == (ApiError, "GET /x: HTTP 502", "HTTP502")


def test_apply_is_forced_strict_and_named():
    async def body():
        fake, api = rig()
        await api.apply(config_map("a"), manager="areal-operator")
        await api.apply(config_map("a", "1"), manager="areal-operator-status", dry_run=True)
        first, second = fake.requests
        assert (first.method, first.content_type) == ("PATCH", "application/apply-patch+yaml")
        assert first.query == {"fieldManager": "areal-operator", "force": "true", "fieldValidation": "Strict"}
        assert second.query["dryRun"] == "All"
        assert fake.objects["configmaps", "ns", "a"]["data"] == {"value": "0"}

    virtual_time.run(body())


def test_get_gives_none_for_what_is_not_there_and_create_twice_is_told_apart():
    async def body():
        _, api = rig()
        assert await api.get(CONFIGMAPS, "ns", "a") is None
        made = await api.create(CONFIGMAPS, config_map("a"))
        assert await api.get(CONFIGMAPS, "ns", "a") == made
        with pytest.raises(AlreadyExistsError):
            await api.create(CONFIGMAPS, config_map("a"))

    virtual_time.run(body())


def test_a_busy_server_is_waited_for_as_long_as_it_asks_and_by_everybody():
    async def body():
        fake, api = rig()
        fake.faults.append(Fault("write", "refuse", code=429, retry_after=7))
        writing = asyncio.create_task(api.apply(config_map("a"), manager="m"))
        await asyncio.sleep(1)
        await api.get(CONFIGMAPS, "ns", "a")
        assert elapsed() == 7.0
        await writing
        assert fake.objects["configmaps", "ns", "a"]

    virtual_time.run(body())


def test_patience_ends_after_a_minute():
    async def body():
        fake, api = rig()
        fake.faults += [Fault("write", "refuse", code=429, retry_after=9) for _ in range(100)]
        with pytest.raises(BusyError) as raised:
            await api.create(CONFIGMAPS, config_map("a"))
        assert raised.value.retry_after_s == 9
        assert 50 < elapsed() <= 60

    virtual_time.run(body())


def test_a_busy_server_that_names_no_time_is_the_callers_to_retry():
    async def body():
        fake, api = rig()
        fake.faults.append(Fault("write", "refuse", code=503))
        with pytest.raises(BusyError):
            await api.apply(config_map("a"), manager="m")
        assert len(fake.requests) == 1

    virtual_time.run(body())


@pytest.mark.parametrize("fault", ["break", "hang"])
def test_what_may_be_said_twice_is_said_twice_over_a_broken_connection(fault):
    async def body():
        fake, api = rig()
        fake.faults.append(Fault("write", fault))
        await api.apply(config_map("a"), manager="m")
        fake.faults.append(Fault("get", fault))
        assert await api.get(CONFIGMAPS, "ns", "a")
        fake.faults += [Fault("write", fault), Fault("write", fault)]
        with pytest.raises(UnreachableError):
            await api.delete(CONFIGMAPS, "ns", "a")
        assert fake.objects

    virtual_time.run(body())


def test_a_create_whose_answer_was_lost_is_not_said_again():
    async def body():
        fake, api = rig()
        fake.faults.append(Fault("write", "break"))
        with pytest.raises(UnreachableError):
            await api.create(CONFIGMAPS, config_map("a"))
        assert len(fake.requests) == 1

    virtual_time.run(body())


def test_half_an_answer_is_no_answer():
    async def body():
        fake, api = rig()
        fake.put("configmaps", config_map("a"))
        fake.faults += [Fault("get", "cut"), Fault("get", "cut")]
        with pytest.raises(UnreachableError, match="not JSON"):
            await api.get(CONFIGMAPS, "ns", "a")

    virtual_time.run(body())


def test_an_apply_meant_for_one_object_does_not_touch_its_successor():
    async def body():
        fake, api = rig()
        first = await api.create(CONFIGMAPS, config_map("a"))
        fake.remove("configmaps", "ns", "a")
        fake.put("configmaps", config_map("a", "second"))
        with pytest.raises(ConflictError):
            await api.apply(config_map("a", "late", uid=first["metadata"]["uid"]), manager="m")
        assert fake.objects["configmaps", "ns", "a"]["data"] == {"value": "second"}

    virtual_time.run(body())


def test_without_the_lease_nothing_is_written_and_everything_is_read():
    class Lost(Exception):
        pass

    def guard():
        raise Lost

    async def body():
        fake, api = rig(guard=guard)
        fake.put("configmaps", config_map("a"))
        for write in (
            api.create(CONFIGMAPS, config_map("b")),
            api.apply(config_map("a", "1"), manager="m"),
            api.delete(CONFIGMAPS, "ns", "a"),
            api.merge(CONFIGMAPS, "ns", "a", {"data": None}),
        ):
            with pytest.raises(Lost):
                await write
        assert [request.method for request in fake.requests] == []
        assert len(await api.list(CONFIGMAPS, "ns")) == 1

    virtual_time.run(body())


def test_a_list_is_all_pages_and_begins_anew_when_its_snapshot_expired():
    async def body():
        fake, api = rig(page=2)
        for index in range(5):
            fake.put("configmaps", config_map(f"m{index}", labels={"even": "1"} if index % 2 == 0 else {}))
        assert [obj["metadata"]["name"] for obj in await api.list(CONFIGMAPS)] == [f"m{index}" for index in range(5)]
        assert [obj["metadata"]["name"] for obj in await api.list(CONFIGMAPS, "ns", labels="even")] == [
            "m0",
            "m2",
            "m4",
        ]
        fake.requests.clear()
        original, fake.take = fake.take, lambda on: None
        fake.faults.append(Fault("list", "expire"))
        fake.take = lambda on: original(on) if fake.requests[-1].query.get("continue") else None
        assert len(await api.list(CONFIGMAPS)) == 5
        assert not fake.faults

    virtual_time.run(body())


def test_a_delete_says_whether_there_was_something_and_how_to_go_about_it():
    async def body():
        fake, api = rig()
        made = await api.create(CONFIGMAPS, config_map("a"))
        assert await api.delete(CONFIGMAPS, "ns", "a", uid=made["metadata"]["uid"], grace_s=0, background=False)
        options = fake.requests[-1].body
        assert options["preconditions"] == {"uid": made["metadata"]["uid"]}
        assert (options["gracePeriodSeconds"], options["propagationPolicy"]) == (0, "Foreground")
        assert not await api.delete(CONFIGMAPS, "ns", "a", uid=made["metadata"]["uid"])

    virtual_time.run(body())


def test_every_answer_is_counted_and_no_answer_too():
    async def body():
        counted = []
        fake, api = rig(on_answer=lambda method, status: counted.append((method, status)))
        await api.get(CONFIGMAPS, "ns", "a")
        fake.faults += [Fault("get", "break")]
        await api.get(CONFIGMAPS, "ns", "a")
        assert counted == [("GET", 404), ("GET", 0), ("GET", 404)]

    virtual_time.run(body())
