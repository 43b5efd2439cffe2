"""A cache that ends up as the server's state, whatever happens on the way. In virtual time."""

import asyncio

import pytest
from areal_operator.kube.resources import CONFIGMAPS, key_of
from areal_operator.runtime.queue import Queue
from areal_operator.runtime.reflector import CacheCurrent, Empty, PageCursor, Reflector, WatchPause
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_watch_rig import NS, TIMES, Rig, config_map, stopped
from support import virtual_time
from support.examples import examples
from support.fake_kube import FakeKube, Fault


def test_a_list_comes_in_pages_and_a_watch_goes_on_from_its_version():
    async def body():
        rig = Rig()
        for index in range(7):
            rig.fake.put("configmaps", config_map(f"m{index}"))
        await rig.watched_for(10)
        lists = rig.asked(watch=False)
        assert [request.query.get("limit") for request in lists] == ["3", "3", "3"]
        assert "resourceVersion" not in lists[0].query, "the newest state, not what a cache of the server holds"
        (watch,) = rig.asked(watch=True)
        assert watch.query["resourceVersion"] == "107"
        assert watch.query["allowWatchBookmarks"] == "true"
        assert watch.query["timeoutSeconds"] == "360"
        assert rig.states == [Empty, PageCursor, PageCursor, CacheCurrent]
        assert rig.held() == rig.truth()
        assert rig.cache.get(NS, "m3")["kind"] == "ConfigMap", "items of a list have no kind of their own"

    virtual_time.run(body())


def test_changes_arrive_and_are_told():
    async def body():
        rig = Rig()
        task = asyncio.create_task(rig.follow())
        await asyncio.sleep(1)
        rig.fake.put("configmaps", config_map("a"))
        rig.fake.put("configmaps", config_map("a", "1"))
        rig.fake.put("configmaps", config_map("b"))
        rig.fake.remove("configmaps", NS, "b")
        await asyncio.sleep(1)
        assert rig.told == [("a", "0"), ("a", "1"), ("b", "0"), ("b", "0")]
        assert rig.held() == {(NS, "a"): "1"}
        await stopped(task)

    virtual_time.run(body())


def test_a_watch_that_the_server_ends_goes_on_where_it_was_without_a_list():
    async def body():
        rig = Rig()
        rig.fake.put("configmaps", config_map("a"))
        await rig.watched_for(1000)
        assert len(rig.asked(watch=False)) == 1
        assert len(rig.asked(watch=True)) == 3
        assert WatchPause not in rig.states

    virtual_time.run(body())


def test_bookmarks_carry_the_version_on_through_quiet_times():
    async def body():
        rig = Rig()
        rig.fake.put("configmaps", config_map("a"))
        task = asyncio.create_task(rig.follow())
        await asyncio.sleep(1)
        for _ in range(10):
            rig.fake.put("secrets", config_map("noise"))
        await asyncio.sleep(400)
        assert int(rig.asked(watch=True)[-1].query["resourceVersion"]) == rig.fake.version
        await stopped(task)

    virtual_time.run(body())


def test_every_hour_there_is_a_list_which_finds_what_a_watch_never_said():
    async def body():
        rig = Rig()
        task = asyncio.create_task(rig.follow())
        rig.fake.faults.append(Fault("watch", "lost"))
        await asyncio.sleep(1)
        rig.fake.put("configmaps", config_map("lost"))
        await asyncio.sleep(3000)
        assert rig.held() == {}
        await asyncio.sleep(1000)
        assert rig.held() == rig.truth()
        assert rig.told == [("lost", "0")]
        assert rig.reflector.pulse.restarts["hourly"] == 1
        await stopped(task)

    virtual_time.run(body())


def test_what_vanished_while_nobody_watched_is_told_as_a_deletion():
    async def body():
        rig = Rig()
        rig.fake.put("configmaps", config_map("stays"))
        rig.fake.put("configmaps", config_map("goes", "last"))
        await rig.watched_for(1)
        rig.fake.remove("configmaps", NS, "goes")
        rig.fake.forget()
        rig.told.clear()
        await rig.watched_for(60)
        assert rig.told == [("goes", "last")]
        assert rig.held() == rig.truth()
        assert rig.reflector.pulse.restarts["expired"] == 1

    virtual_time.run(body())


RECOVERIES = {
    "410 as an event": (Fault("watch", "expire"), "list"),
    "410 after some events": (Fault("watch", "expire", after=1), "list"),
    "410 as a status": (Fault("watch", "refuse", code=410), "list"),
    "cut within a line": (Fault("watch", "cut", after=1), "list"),
    "a proxy's page": (Fault("watch", "garbage", after=1), "list"),
    "an event nobody knows": (Fault("watch", "unknown", after=1), "list"),
    "refused with 403": (Fault("watch", "refuse", code=403), "list"),
    "refused with 500": (Fault("watch", "refuse", code=500), "list"),
    "ended at once": (Fault("watch", "end"), "watch"),
    "ended after an event": (Fault("watch", "end", after=1), "watch"),
    "reset": (Fault("watch", "break"), "watch"),
    "reset after an event": (Fault("watch", "break", after=1), "watch"),
    "half-open from the start": (Fault("watch", "hang"), "watch"),
    "half-open after an event": (Fault("watch", "hang", after=1), "watch"),
    "bookmarks only": (Fault("watch", "bookmarks"), "watch"),
    "five megabytes in a line": (Fault("watch", "huge", after=1), "none at all"),
}


@pytest.mark.parametrize(("fault", "recovery"), RECOVERIES.values(), ids=RECOVERIES.keys())
def test_after_each_fault_of_a_watch_the_cache_is_right_again(fault, recovery):
    """`recovery`: whether the version was still to be trusted (a new watch is enough) or not (a new list)."""

    async def body():
        rig = Rig()
        rig.fake.faults.append(Fault(**vars(fault)))
        task = asyncio.create_task(rig.follow())
        await asyncio.sleep(1)
        rig.fake.put("configmaps", config_map("a"))
        await asyncio.sleep(0.5)
        rig.fake.put("configmaps", config_map("b"))
        await asyncio.sleep(400)  # a half-open connection is noticed when the watch should have ended
        assert rig.held() == rig.truth()
        assert set(rig.told) == {("a", "0"), ("b", "0")}
        assert len(rig.asked(watch=False)) == (2 if recovery == "list" else 1)
        await stopped(task)

    virtual_time.run(body())


LIST_FAULTS = [
    Fault("list", "hang"),
    Fault("list", "break"),
    Fault("list", "cut"),
    Fault("list", "garbage"),
    Fault("list", "refuse", code=500),
    Fault("list", "refuse", code=429, retry_after=2),
    Fault("list", "refuse", code=403),
    Fault("list", "expire"),
]


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("fault", LIST_FAULTS, ids=lambda fault: f"{fault.kind} {fault.code}")
def test_a_list_that_fails_is_begun_anew_and_half_of_it_is_never_taken(fault, page):
    async def body():
        rig = Rig()
        for index in range(5):
            rig.fake.put("configmaps", config_map(f"m{index}"))
        if page:
            original = rig.fake.take
            rig.fake.take = lambda on: original(on) if rig.fake.requests[-1].query.get("continue") else None
        rig.fake.faults.append(Fault(**vars(fault)))
        task = asyncio.create_task(rig.follow())
        while not rig.cache.synced:
            assert rig.held() == {}
            await asyncio.sleep(0.005)
            assert virtual_time.now() < 1100
        assert not rig.fake.faults
        assert rig.held() == rig.truth()
        await stopped(task)

    virtual_time.run(body())


def test_a_list_slower_than_the_servers_memory_is_asked_for_in_one_piece():
    async def body():
        rig = Rig()
        for index in range(5):
            rig.fake.put("configmaps", config_map(f"m{index}"))
        rig.fake.forget()
        answer = rig.fake.answer

        def forgetful(request):
            rig.fake._snapshots.clear()
            return answer(request)

        rig.fake.answer = forgetful
        await rig.watched_for(30)
        assert [request.query.get("limit") for request in rig.asked(watch=False)] == ["3", "3", None]
        assert rig.held() == rig.truth()

    virtual_time.run(body())


def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_hurry():
    async def body():
        rig = Rig()
        rig.fake.faults += [Fault("watch", "end") for _ in range(10_000)]
        await rig.watched_for(600)
        assert len(rig.asked(watch=True)) < 40

    virtual_time.run(body())


def test_a_server_that_is_away_is_asked_less_and_less_often():
    async def body():
        rig = Rig()
        rig.fake.faults += [Fault("list", "break") for _ in range(10_000)]
        await rig.watched_for(600)
        assert len(rig.asked(watch=False)) < 40
        assert not rig.cache.synced

    virtual_time.run(body())


def test_a_server_restored_from_a_backup_is_believed():
    """Versions begin anew at a lower number; the old ones would win every comparison."""

    async def body():
        rig = Rig()
        rig.fake.put("configmaps", config_map("a", "before"))
        for _ in range(20):
            rig.fake.put("configmaps", config_map("a", "later"))
        task = asyncio.create_task(rig.follow())
        await asyncio.sleep(1)
        rig.fake.version, rig.fake.history = 50, []
        uid = rig.fake.objects["configmaps", NS, "a"]["metadata"]["uid"]
        restored = rig.fake.put("configmaps", config_map("a", "restored"))
        assert restored["metadata"]["uid"] == uid
        rig.fake.faults.append(Fault("watch", "expire"))
        await asyncio.sleep(400)
        assert rig.held() == {(NS, "a"): "restored"}
        await stopped(task)

    virtual_time.run(body())


def test_a_forbidden_optional_resource_counts_as_empty_and_is_tried_again():
    async def body():
        rig = Rig(optional=True)
        rig.fake.put("configmaps", config_map("a"))
        rig.fake.faults += [Fault("list", "refuse", code=403), Fault("list", "refuse", code=404)]
        task = asyncio.create_task(rig.follow())
        await asyncio.sleep(1)
        assert rig.cache.synced
        assert rig.held() == {}
        await asyncio.sleep(70)
        assert rig.held() == rig.truth()
        await stopped(task)

    virtual_time.run(body())


def test_a_scope_sees_its_namespace_and_a_cache_of_two_scopes_both():
    async def body():
        fake = FakeKube()
        for namespace in ("one", "two", "three"):
            fake.put("configmaps", config_map("m", namespace, namespace))
        rig = Rig(fake, scope="one", scopes=("one", "two"))
        other = Reflector(rig.api, rig.cache, scope="two", times=TIMES, clock=virtual_time.now)
        tasks = [asyncio.create_task(rig.follow())]
        await asyncio.sleep(1)
        assert not rig.cache.synced
        tasks.append(asyncio.create_task(other.run()))
        await asyncio.sleep(1)
        assert rig.cache.synced
        assert rig.held() == {("one", "m"): "one", ("two", "m"): "two"}
        fake.remove("configmaps", "one", "m")
        fake.forget()
        fake.faults.append(Fault("watch", "expire"))
        await asyncio.sleep(1000)
        assert rig.held() == {("two", "m"): "two"}
        for task in tasks:
            await stopped(task)

    virtual_time.run(body())


names = st.sampled_from(["a", "b", "c", "d"])
faults = st.builds(
    Fault,
    st.just("watch"),
    st.sampled_from(["hang", "break", "refuse", "end", "cut", "garbage", "unknown", "expire", "bookmarks"]),
    after=st.integers(0, 3),
    code=st.sampled_from([403, 410, 429, 500, 503]),
) | st.builds(
    Fault,
    st.just("list"),
    st.sampled_from(["hang", "break", "refuse", "cut", "garbage", "expire"]),
    code=st.sampled_from([403, 410, 429, 500, 503]),
)
steps = st.one_of(
    st.tuples(st.just("put"), names),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("own apply"), names),
    st.tuples(st.just("own delete"), names),
    st.tuples(st.just("fault"), faults),
    st.tuples(st.just("forget"), st.none()),
    st.tuples(st.just("wait"), st.floats(0.001, 500)),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(steps, max_size=30))
def test_after_any_faults_the_cache_is_the_servers_state_and_every_last_change_was_worked_on(script):
    async def body():
        rig = Rig()
        queue = Queue(clock=virtual_time.now)
        rig.cache._on_change = lambda obj: queue.add(key_of(obj))
        seen, ever = {}, set()

        async def worker(key):
            seen[key] = rig.cache.get(*key)

        tasks = [asyncio.create_task(rig.follow()), asyncio.create_task(queue.run(worker))]
        values = iter(range(1000))
        for step, argument in script:
            match step:
                case "put":
                    rig.fake.put("configmaps", config_map(argument, str(next(values))))
                    ever.add((NS, argument))
                case "remove":
                    rig.fake.remove("configmaps", NS, argument)
                case "own apply":
                    obj = config_map(argument, str(next(values)))
                    mine = await rig.api.apply(obj, manager="areal-operator")
                    cached = rig.cache.get(NS, argument)
                    assert cached is not None, "read your writes"
                    assert int(cached["metadata"]["resourceVersion"]) >= int(mine["metadata"]["resourceVersion"])
                    ever.add((NS, argument))
                case "own delete":
                    await rig.api.delete(CONFIGMAPS, NS, argument)
                case "fault":
                    rig.fake.faults.append(Fault(**vars(argument)))
                case "forget":
                    rig.fake.forget()
                case "wait":
                    await asyncio.sleep(argument)
        rig.fake.faults.clear()
        await asyncio.sleep(360 + 15 + 60)  # a watch that hangs, then the longest back-off and a list
        assert rig.held() == rig.truth()
        for key in ever:
            was_there_unseen = key not in seen and key not in rig.truth()  # came and went between two looks
            assert was_there_unseen or seen[key] == rig.cache.get(*key)
        for task in tasks:
            await stopped(task)

    virtual_time.run(body())
