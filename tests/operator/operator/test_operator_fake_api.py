"""The fake API server does what a real one does: the same cases, against both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from areal_operator.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from areal_operator.kube.resources import CONFIGMAPS, RLJOBS, STATEFULSETS, Json
from areal_operator.operator.decide import decide
from areal_operator.operator.decision import Converge
from areal_operator.operator.summarize import summarize
from areal_operator.runtime.api import MANAGER, STATUS_MANAGER, Api
from areal_operator.runtime.transport import connect
from operator_values import NOW, a_failure, remembered, seen
from support.fake_api import FakeApi
from support.operator_jobs import job_object

Server = Any


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kube_api)])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Server, str]]:
    """A server and a namespace of it."""
    if request.param == "fake":
        yield FakeApi(lambda: "2026-01-01T00:00:00Z"), "default"
        return
    cluster = request.getfixturevalue("cluster")
    request.getfixturevalue("crds")
    namespace = request.getfixturevalue("namespace")
    api = Api(await connect(cluster.kubeconfig))
    yield api, namespace
    await api.close()


def config(namespace: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": namespace}, "data": data}


def fleet(namespace: str, replicas: int) -> Json:
    labels = {"app": "fleet"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    spec = {"replicas": replicas, "serviceName": "f", "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "f", "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}


async def test_a_name_is_taken_once(server: tuple[Server, str]) -> None:
    api, namespace = server
    await api.create(CONFIGMAPS, config(namespace))
    with pytest.raises(AlreadyExistsError):
        await api.create(CONFIGMAPS, config(namespace))


async def test_what_a_manager_stops_saying_is_removed_and_others_words_stay(server: tuple[Server, str]) -> None:
    api, namespace = server
    await api.apply(config(namespace, mine="1", gone="1"), manager=MANAGER)
    await api.apply(config(namespace, theirs="2"), manager="somebody")
    await api.apply(config(namespace, mine="3"), manager=MANAGER)
    found = await api.get(CONFIGMAPS, namespace, "c")
    assert found["data"] == {"mine": "3", "theirs": "2"}


async def test_text_of_any_plane_comes_back_as_it_was_sent(server: tuple[Server, str]) -> None:
    api, namespace = server
    text = "# 😀 𝜋 \u2028\n"
    made = await api.apply(config(namespace, text=text), manager=MANAGER)
    assert made["data"]["text"] == text


async def test_applying_the_same_again_changes_no_version(server: tuple[Server, str]) -> None:
    api, namespace = server
    first = await api.apply(config(namespace, a="1"), manager=MANAGER)
    again = await api.apply(config(namespace, a="1"), manager=MANAGER)
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_generation_counts_changes_of_the_spec(server: tuple[Server, str]) -> None:
    api, namespace = server
    made = [await api.apply(fleet(namespace, replicas), manager=MANAGER) for replicas in (0, 0, 1)]
    assert [obj["metadata"]["generation"] for obj in made] == [1, 1, 2]


async def test_a_dry_run_stores_nothing_and_has_no_version_where_nothing_is(server: tuple[Server, str]) -> None:
    api, namespace = server
    tried = await api.apply(config(namespace, a="1"), manager=MANAGER, dry_run=True)
    assert not tried["metadata"].get("resourceVersion")
    assert await api.get(CONFIGMAPS, namespace, "c") is None
    await api.apply(config(namespace, a="1"), manager="somebody")
    tried = await api.apply(config(namespace, a="2"), manager=MANAGER, dry_run=True)
    assert tried["metadata"]["resourceVersion"]
    assert (await api.get(CONFIGMAPS, namespace, "c"))["data"] == {"a": "1"}


async def test_a_delete_by_uid_spares_a_successor(server: tuple[Server, str]) -> None:
    api, namespace = server
    made = await api.create(CONFIGMAPS, config(namespace))
    assert not await api.delete(CONFIGMAPS, namespace, "c", uid="another")
    assert await api.delete(CONFIGMAPS, namespace, "c", uid=made["metadata"]["uid"])
    assert not await api.delete(CONFIGMAPS, namespace, "c", uid=made["metadata"]["uid"])
    assert await api.get(CONFIGMAPS, namespace, "c") is None


async def test_an_object_of_another_uid_is_not_applied_over(server: tuple[Server, str]) -> None:
    api, namespace = server
    await api.create(CONFIGMAPS, config(namespace))
    foreign = config(namespace, a="1")
    foreign["metadata"]["uid"] = "another"
    with pytest.raises(ConflictError):
        await api.apply(foreign, manager=MANAGER)


async def test_a_foreground_delete_waits_for_what_is_owned(server: tuple[Server, str]) -> None:
    api, namespace = server
    owner = await api.create(STATEFULSETS, fleet(namespace, 0))
    child = config(namespace)
    child["metadata"]["finalizers"] = ["example.com/hold"]
    child["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "f", "uid": owner["metadata"]["uid"],
         "controller": True, "blockOwnerDeletion": True}
    ]  # fmt: skip
    await api.create(CONFIGMAPS, child)
    assert await api.delete(STATEFULSETS, namespace, "f", uid=owner["metadata"]["uid"], background=False)
    found = await api.get(STATEFULSETS, namespace, "f")
    assert found is not None
    assert found["metadata"]["deletionTimestamp"]
    await api.apply({**config(namespace), "metadata": {**config(namespace)["metadata"], "finalizers": []}}, manager="t")


async def _job(api: Server, namespace: str) -> Json:
    found: Json = await api.create(RLJOBS, job_object(namespace=namespace))
    return found


def _status(job: Json, **status: Any) -> Json:
    metadata = {name: job["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
    return {"apiVersion": job["apiVersion"], "kind": job["kind"], "metadata": metadata, "status": status}


async def test_a_status_is_written_apart_from_the_spec(server: tuple[Server, str]) -> None:
    api, namespace = server
    job = await _job(api, namespace)
    written = await api.apply(_status(job, summary="Pending"), manager=STATUS_MANAGER, subresource="status")
    assert written["status"]["summary"] == "Pending"
    assert written["metadata"]["generation"] == job["metadata"]["generation"]
    assert written["spec"] == job["spec"]


async def test_a_status_written_from_a_stale_sight_is_refused(server: tuple[Server, str]) -> None:
    api, namespace = server
    job = await _job(api, namespace)
    await api.apply(_status(job, summary="Pending"), manager=STATUS_MANAGER, subresource="status")
    with pytest.raises(ConflictError):
        await api.apply(_status(job, summary="Running"), manager=STATUS_MANAGER, subresource="status")


async def test_a_status_of_no_job_creates_none(server: tuple[Server, str]) -> None:
    api, namespace = server
    job = await _job(api, namespace)
    await api.delete(RLJOBS, namespace, job["metadata"]["name"])
    with pytest.raises((NotFoundError, ConflictError)):
        await api.apply(_status(job, summary="Running"), manager=STATUS_MANAGER, subresource="status")


async def test_a_status_meant_for_an_earlier_job_of_the_name_is_refused(server: tuple[Server, str]) -> None:
    api, namespace = server
    old = await _job(api, namespace)
    await api.delete(RLJOBS, namespace, old["metadata"]["name"], uid=old["metadata"]["uid"])
    await _job(api, namespace)
    with pytest.raises(ConflictError):
        await api.apply(_status(old, summary="Running"), manager=STATUS_MANAGER, subresource="status")


async def test_a_status_comes_back_as_it_was_written(server: tuple[Server, str]) -> None:
    """So an unchanged job is recognised, and not written again."""
    api, namespace = server
    job = await _job(api, namespace)
    base = seen(remembered(failures=(a_failure(NOW - 5), a_failure(NOW - 9, "trainer", "t", exit_code=None))))
    decision = decide(base, NOW)
    assert isinstance(decision, Converge)
    status = summarize(base, decision, NOW)
    written = await api.apply(_status(job, **status), manager=STATUS_MANAGER, subresource="status")
    assert written["status"] == status
    again = await api.apply(_status(written, **status), manager=STATUS_MANAGER, subresource="status")
    assert again["metadata"]["resourceVersion"] == written["metadata"]["resourceVersion"]


async def test_a_status_field_that_is_not_said_any_more_goes(server: tuple[Server, str]) -> None:
    api, namespace = server
    job = await _job(api, namespace)
    full = _status(job, summary="Running", attempts={"epoch": 1, "members": ["a/0"]})
    job = await api.apply(full, manager=STATUS_MANAGER, subresource="status")
    job = await api.apply(_status(job, attempts={"epoch": 2}), manager=STATUS_MANAGER, subresource="status")
    assert "summary" not in job["status"]
    assert job["status"]["attempts"]["epoch"] == 2
    assert not job["status"]["attempts"].get("members")
