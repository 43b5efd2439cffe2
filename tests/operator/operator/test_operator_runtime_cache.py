"""A cache has its owner's writes at once and is found by owner and by job. In virtual time."""

import asyncio

from areal.plan.cluster_names import LABEL_JOB
from areal_operator.kube.resources import CONFIGMAPS
from areal_operator.runtime.cache import Cache
from operator_watch_rig import NS, Rig, config_map, stopped
from support import virtual_time


def test_own_writes_are_in_the_cache_when_the_call_returns_and_are_told_once():
    async def body():
        rig = Rig()
        task = asyncio.create_task(rig.follow())
        await asyncio.sleep(1)
        made = await rig.api.create(CONFIGMAPS, config_map("a"))
        assert rig.cache.get(NS, "a") == made
        await rig.api.apply(config_map("a", "1"), manager="areal-operator")
        assert rig.held() == {(NS, "a"): "1"}
        await rig.api.apply(config_map("a", "2"), manager="areal-operator", dry_run=True)
        assert rig.held() == {(NS, "a"): "1"}, "a dry run changes nothing"
        assert await rig.api.delete(CONFIGMAPS, NS, "a", uid=made["metadata"]["uid"])
        assert rig.held() == {}
        await asyncio.sleep(5)
        assert rig.told == [("a", "0"), ("a", "1"), ("a", "1")]
        assert rig.held() == {}
        assert not await rig.api.delete(CONFIGMAPS, NS, "a")
        await stopped(task)

    virtual_time.run(body())


def test_a_cache_that_is_behind_never_goes_back_before_an_own_write():
    async def body():
        rig = Rig()
        await rig.watched_for(1)
        old = rig.fake.put("configmaps", config_map("a", "old"))
        new = await rig.api.apply(config_map("a", "new"), manager="areal-operator")
        rig.cache.offer(old)  # the watch, late
        assert rig.held() == {(NS, "a"): "new"}
        rig.cache.replace("", [old], int(old["metadata"]["resourceVersion"]))  # a list from before
        assert rig.held() == {(NS, "a"): "new"}
        rig.cache.replace("", [], int(old["metadata"]["resourceVersion"]))
        assert rig.held() == {(NS, "a"): "new"}
        await rig.api.delete(CONFIGMAPS, NS, "a", uid=new["metadata"]["uid"])
        rig.cache.offer(new)
        assert rig.held() == {}, "late news of an object that we deleted"
        again = await rig.api.apply(config_map("a", "again"), manager="areal-operator")
        rig.cache.removed(new)
        assert rig.cache.get(NS, "a") == again, "the end of its predecessor is not its own"

    virtual_time.run(body())


def test_a_delete_aimed_at_a_predecessor_spares_its_successor():
    async def body():
        rig = Rig()
        first = await rig.api.create(CONFIGMAPS, config_map("a"))
        rig.fake.remove("configmaps", NS, "a")
        rig.fake.put("configmaps", config_map("a", "second"))
        assert not await rig.api.delete(CONFIGMAPS, NS, "a", uid=first["metadata"]["uid"])
        assert rig.truth() == {(NS, "a"): "second"}
        await rig.watched_for(1)
        assert rig.held() == rig.truth()

    virtual_time.run(body())


def test_objects_are_found_by_owner_and_by_job_and_both_jobs_hear_of_a_label_that_moves():
    told = []
    cache = Cache(CONFIGMAPS, lambda obj: told.append(obj["metadata"]["labels"][LABEL_JOB]))

    def owned(name, version, job, *owners):
        obj = config_map(name, **{LABEL_JOB: job})
        references = [{"uid": owner} for owner in owners]
        obj["metadata"] |= {"uid": name, "resourceVersion": str(version), "ownerReferences": references}
        return obj

    cache.offer(owned("b", 1, "job", "x"))
    cache.offer(owned("a", 2, "job", "x", "y"))
    assert [obj["metadata"]["name"] for obj in cache.owned_by("x")] == ["a", "b"]
    assert [obj["metadata"]["name"] for obj in cache.labelled(NS, "job")] == ["a", "b"]
    cache.offer(owned("a", 3, "other", "y"))
    assert [obj["metadata"]["name"] for obj in cache.owned_by("x")] == ["b"]
    assert [obj["metadata"]["name"] for obj in cache.labelled(NS, "other")] == ["a"]
    assert told == ["job", "job", "other", "job"]
    cache.replace("", [], 10)
    assert (cache.owned_by("x"), cache.owned_by("y"), cache.labelled(NS, "job"), len(cache)) == ([], [], [], 0)


def test_with_a_label_selector_an_own_write_without_the_label_is_not_kept():
    async def body():
        rig = Rig(labelled_only=True)
        task = asyncio.create_task(rig.follow())
        await asyncio.sleep(1)
        await rig.api.create(CONFIGMAPS, config_map("with", **{LABEL_JOB: "j"}))
        await rig.api.create(CONFIGMAPS, config_map("without"))
        rig.fake.put("configmaps", config_map("behind our back"))
        await asyncio.sleep(1)
        assert rig.held() == {(NS, "with"): "0"}
        assert {request.query["labelSelector"] for request in rig.fake.requests if request.method == "GET"} == {
            LABEL_JOB
        }
        await stopped(task)

    virtual_time.run(body())
