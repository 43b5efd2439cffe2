"""A process's life: full caches, then the lease, then work; and a clean end."""

import asyncio
import urllib.error
import urllib.request
from contextlib import asynccontextmanager

import pytest
from areal.plan.cluster_names import LABEL_JOB
from areal_operator.kube.resources import CLUSTER_RUNTIMES, PODS, RLJOBS, key_of
from areal_operator.runtime.lease import LeaseLostError
from areal_operator.runtime.manager import Manager, ManagerSettings, WatchSpec
from areal_operator.runtime.pages import OperatorHealth
from areal_operator.runtime.reflector import Pulse
from support import virtual_time
from support.fake_kube import FakeKube, Fault
from support.fake_kube_fronts import MemoryTransport


def rljob(name, namespace="ns"):
    return {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name, "namespace": namespace}}


def pod(name, job):
    metadata = {"name": name, "namespace": "ns", "labels": {LABEL_JOB: job}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


WATCHED = [
    WatchSpec(RLJOBS, lambda obj: [key_of(obj)]),
    WatchSpec(PODS, lambda obj: [("ns", obj["metadata"]["labels"][LABEL_JOB])], labelled_only=True),
    WatchSpec(CLUSTER_RUNTIMES, lambda obj: [], optional=True),
]


def manager(fake, identity="a", **settings):
    told = ManagerSettings(
        identity=identity, lease_namespace="ops", bind="127.0.0.1", metrics_port=0, health_port=0, **settings
    )
    return Manager(MemoryTransport(fake), WATCHED, told, asyncio.get_running_loop().time)


class Running:
    """A manager that runs, and the keys that it worked on."""

    def __init__(self, made):
        self.manager = made
        self.stop = asyncio.Event()
        self.worked = []
        self.task = asyncio.create_task(made.run(self.reconcile, self.stop))

    async def reconcile(self, key):
        self.worked.append(key[1])
        await asyncio.sleep(0.5)

    def get(self, path):
        """Ask its health server; blocks, which the thread that answers does not mind."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.manager.health_port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode().strip()

    def metrics(self):
        url = f"http://127.0.0.1:{self.manager.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read().decode()


@asynccontextmanager
async def running(made):
    it = Running(made)
    try:
        yield it
    finally:
        it.stop.set()
        await asyncio.gather(it.task, return_exceptions=True)


def test_it_is_ready_when_every_cache_is_full_and_works_only_then():
    async def body():
        fake = FakeKube()
        fake.put("rljobs", rljob("digits"))
        fake.faults += [Fault("list", "refuse", code=500) for _ in range(4)]
        async with running(manager(fake)) as it:
            await asyncio.sleep(0.1)
            assert it.get("/readyz") == (503, "caches are not synced")
            assert it.get("/healthz") == (200, "ok")
            assert it.worked == []
            await asyncio.sleep(10)
            assert it.get("/readyz") == (200, "ok")
            assert it.worked == ["digits"]
            assert it.get("/secrets")[0] == 404

    virtual_time.run(body())


def test_a_change_of_a_job_or_of_its_pod_is_worked_on():
    async def body():
        fake = FakeKube()
        fake.put("rljobs", rljob("a"))
        async with running(manager(fake)) as it:
            await asyncio.sleep(2)
            fake.put("pods", pod("p", "b"))
            await asyncio.sleep(2)
            fake.remove("pods", "ns", "p")
            await asyncio.sleep(2)
            assert it.worked == ["a", "b", "b"]

    virtual_time.run(body())


def test_a_follower_keeps_its_caches_and_takes_over_within_seconds_of_a_clean_stop():
    async def body():
        fake = FakeKube()
        fake.put("rljobs", rljob("digits"))
        async with running(manager(fake, "a")) as leader:
            await asyncio.sleep(5)
            async with running(manager(fake, "b")) as follower:
                await asyncio.sleep(60)
                assert follower.get("/readyz") == (200, "ok")
                assert (leader.worked, follower.worked) == (["digits"], [])
                assert "areal_operator_leader 0.0" in follower.metrics()
                leader.stop.set()
                await leader.task
                began = virtual_time.now()
                await virtual_time.until(lambda: follower.worked)
                assert virtual_time.now() - began < 3
                assert "areal_operator_leader 1.0" in follower.metrics()

    virtual_time.run(body())


def test_a_stop_waits_for_the_work_in_hand():
    async def body():
        fake = FakeKube()
        fake.put("rljobs", rljob("digits"))
        it = Running(manager(fake))
        ended = []

        async def slow(key):
            await asyncio.sleep(5)
            ended.append(key[1])

        it.task.cancel()
        await asyncio.gather(it.task, return_exceptions=True)
        task = asyncio.create_task(it.manager.run(slow, it.stop))
        await asyncio.sleep(2)
        it.stop.set()
        await task
        assert ended == ["digits"]
        assert fake.objects["leases", "ops", "areal-operator"]["spec"]["holderIdentity"] == ""

    virtual_time.run(body())


def test_work_that_does_not_end_is_not_waited_for_for_ever():
    async def body():
        fake = FakeKube()
        fake.put("rljobs", rljob("digits"))
        made = manager(fake)
        stop = asyncio.Event()

        async def stuck(key):
            await asyncio.Event().wait()

        task = asyncio.create_task(made.run(stuck, stop))
        await asyncio.sleep(2)
        began = virtual_time.now()
        stop.set()
        await task
        assert virtual_time.now() - began < 12

    virtual_time.run(body())


def test_a_lost_lease_ends_the_process_and_writes_nothing_more():
    async def body():
        fake = FakeKube()
        fake.put("rljobs", rljob("digits"))
        async with running(manager(fake)) as it:
            await asyncio.sleep(5)
            lease = fake.objects["leases", "ops", "areal-operator"]
            fake.put("leases", {**lease, "spec": {**lease["spec"], "holderIdentity": "usurper"}})
            with pytest.raises(LeaseLostError):
                await it.task
            with pytest.raises(LeaseLostError):
                await it.manager.api.apply(rljob("digits"), manager="m")
            assert fake.objects["leases", "ops", "areal-operator"]["spec"]["holderIdentity"] == "usurper"

    virtual_time.run(body())


def test_a_new_leader_sees_what_the_last_one_wrote_in_its_last_moment():
    async def body():
        fake = FakeKube()
        fake.put("rljobs", rljob("digits"))
        made = manager(fake)
        seen = []

        async def look(key):
            seen.append(made.caches[RLJOBS].get(*key).get("status"))

        fake.faults.append(Fault("watch", "hang"))
        fake.faults.append(Fault("watch", "hang"))
        fake.faults.append(Fault("watch", "hang"))
        fake.put("leases", lease_of("other"))
        stop = asyncio.Event()
        task = asyncio.create_task(made.run(look, stop))
        await asyncio.sleep(5)
        fake.put("rljobs", {**rljob("digits"), "status": {"attempts": {"epoch": 7}}})  # which no watch says
        await asyncio.sleep(30)
        assert seen[0] == {"attempts": {"epoch": 7}}
        stop.set()
        await task

    virtual_time.run(body())


def lease_of(holder):
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15}
    metadata = {"name": "areal-operator", "namespace": "ops"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def test_in_namespaced_mode_only_those_namespaces_are_asked_about():
    async def body():
        fake = FakeKube()
        for namespace in ("one", "two", "three"):
            fake.put("rljobs", rljob(f"in-{namespace}", namespace))
        fake.faults.append(Fault("list", "refuse", code=403))
        original = fake.take
        fake.take = lambda on: original(on) if "clusterrlruntimes" in fake.requests[-1].path else None
        async with running(manager(fake, namespaces=("one", "two"))) as it:
            await asyncio.sleep(10)
            assert sorted(it.worked) == ["in-one", "in-two"]
            assert not fake.faults, "the forbidden cluster-wide resource did not keep it from working"
            paths = {request.path for request in fake.requests if "leases" not in request.path}
            assert all("/namespaces/" in path for path in paths if "clusterrlruntimes" not in path)

    virtual_time.run(body())


def test_what_it_does_is_in_its_metrics():
    async def body():
        fake = FakeKube()
        fake.put("rljobs", rljob("digits"))
        async with running(manager(fake)) as it:
            await asyncio.sleep(30)
            lines = it.metrics().splitlines()
            assert 'areal_operator_reconcile_total{result="ok"} 1.0' in lines
            assert "areal_operator_reconcile_duration_seconds_sum 0.5" in lines
            assert 'areal_operator_cached_objects{resource="rljobs"} 1.0' in lines
            assert "areal_operator_queue_depth 0.0" in lines
            assert any(line.startswith("areal_operator_watch_last_event_timestamp_seconds{") for line in lines)
            assert any(line.startswith('areal_operator_api_requests_total{code="200",method="GET"}') for line in lines)

    virtual_time.run(body())


def test_a_watch_that_is_silent_for_three_times_its_length_is_an_illness():
    now = [0.0]
    pulse = Pulse("pods")
    health = OperatorHealth(synced=lambda: True, pulses=[pulse], clock=lambda: now[0])
    now[0] = health._beat_at = 1080.0
    assert health.ills() == []
    now[0] = health._beat_at = 1081.0
    assert health.ills() == ["nothing was heard of pods for 1081 s"]
    pulse.heard_at = 1000.0
    assert health.ills() == []


def test_an_event_loop_that_stands_still_is_an_illness_and_so_is_one_that_was_late():
    async def body():
        health = OperatorHealth(synced=lambda: True, pulses=[], clock=virtual_time.now)
        beating = asyncio.create_task(health.beat())
        await asyncio.sleep(10)
        assert health.ills() == []
        loop = asyncio.get_running_loop()
        loop.now += 20
        assert health.ills() == []
        loop.now += 15
        (ill,) = health.ills()
        assert ill.startswith("the event loop is 3")
        await asyncio.sleep(0.001)
        assert health.ills()
        await asyncio.sleep(3)
        assert health.ills() == []
        beating.cancel()

    virtual_time.run(body())
