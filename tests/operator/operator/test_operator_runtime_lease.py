"""One leader at a time, whatever clocks and networks do."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from areal_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    UnreachableError,
)
from areal_operator.runtime.lease import Election, LeaseLostError, NamespaceClaims
from hypothesis import given, settings
from hypothesis import strategies as st
from support import virtual_time
from support.examples import examples


class Leases:
    """The API server's one lease."""

    def __init__(self):
        self.lease = None
        self.version = 0
        self.writes = 0

    def write(self, lease):
        version = lease["metadata"].get("resourceVersion")
        if self.lease is None and version is None:
            pass
        elif version is None:
            raise AlreadyExistsError(409, "AlreadyExists", "there is one")
        elif self.lease is None or version != self.lease["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", "another version")
        self.version += 1
        self.writes += 1
        metadata = {**lease["metadata"], "resourceVersion": str(self.version)}
        self.lease = {**lease, "metadata": metadata}
        return self.lease


@dataclass
class Node:
    """One contender's machine: its network and its clocks."""

    leases: Leases
    name: str
    cut: str = ""  # "requests" or "answers" that get lost
    latency_s: float = 0.05
    rate: float = 1.0  # how fast its monotonic clock runs
    wall_offset_s: float = 0.0
    asleep_s: float = 0.0  # by how much this process was suspended: its clock went on, its code did not
    log: list[tuple[float, bool]] = field(default_factory=list)

    @property
    def bare(self):
        return {"metadata": {"namespace": "ns", "name": "l"}}

    def clock(self):
        return virtual_time.now() * self.rate

    def wall(self):
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=virtual_time.now() + self.wall_offset_s)

    async def call(self, action, deadline_s):
        loop = asyncio.get_running_loop()
        ends = loop.time() + deadline_s
        await asyncio.sleep(min(self.latency_s, deadline_s))
        if self.cut != "requests" and loop.time() < ends:
            result = action()
            if self.cut != "answers":
                await asyncio.sleep(min(self.latency_s, ends - loop.time()))
                if loop.time() < ends:
                    return result
        await asyncio.sleep(max(0.0, ends - loop.time()))
        raise UnreachableError("no answer")

    async def read(self, deadline_s):
        return await self.call(lambda: self.leases.lease, deadline_s)

    async def write(self, lease, deadline_s):
        return await self.call(lambda: self.leases.write(lease), deadline_s)

    def contender(self):
        return Election(self, self.name, clock=self.clock, wall=self.wall)


async def contend(election, led):
    """As an operator process does: acquire, hold, and end when it is lost."""
    await election.acquire()
    led.append((election.identity, round(virtual_time.now() - 1000.0, 1)))
    await election.hold()


def two(**differences):
    leases = Leases()
    return Node(leases, "a"), Node(leases, "b", **differences)


async def settle(*tasks):
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_the_first_of_two_leads_and_the_other_waits():
    async def body():
        a, b = two()
        one, other, led = a.contender(), b.contender(), []
        tasks = [asyncio.create_task(contend(one, led))]
        await asyncio.sleep(1)
        tasks.append(asyncio.create_task(contend(other, led)))
        await asyncio.sleep(300)
        assert (one.leads, other.leads, other.holder) == (True, False, "a")
        assert [who for who, _ in led] == ["a"]
        assert a.leases.lease["spec"]["leaseTransitions"] == 0
        await settle(*tasks)

    virtual_time.run(body())


def test_a_clean_stop_hands_over_within_a_retry():
    async def body():
        a, b = two()
        one, other, led = a.contender(), b.contender(), []
        first = asyncio.create_task(contend(one, led))
        await asyncio.sleep(1)
        second = asyncio.create_task(contend(other, led))
        await asyncio.sleep(20)
        await settle(first)
        await one.release()
        released = virtual_time.now() - 1000.0
        assert not one.leads
        await asyncio.sleep(5)
        assert other.leads
        assert led[1][1] - released <= 2.3
        assert a.leases.lease["spec"]["leaseTransitions"] == 1
        await settle(second)

    virtual_time.run(body())


def test_a_leader_that_vanished_is_succeeded_after_its_lease_ran_out():
    async def body():
        a, b = two()
        one, other, led = a.contender(), b.contender(), []
        first = asyncio.create_task(contend(one, led))
        second = asyncio.create_task(contend(other, led))
        await asyncio.sleep(20)
        leader, rest = (one, other) if one.leads else (other, one)
        await settle(first if leader is one else second)  # as kill -9: nothing is released
        began = virtual_time.now()
        await virtual_time.until(lambda: rest.leads)
        assert 12.5 < virtual_time.now() - began < 20
        await settle(first, second)

    virtual_time.run(body())


@pytest.mark.parametrize("cut", ["requests", "answers"])
def test_a_leader_cut_off_stops_leading_before_the_other_begins(cut):
    async def body():
        a, b = two()
        one, other, led = a.contender(), b.contender(), []
        first = asyncio.create_task(contend(one, led))
        await asyncio.sleep(1)
        second = asyncio.create_task(contend(other, led))
        await asyncio.sleep(10)
        a.cut = cut
        stopped = began = None
        for _ in range(600):
            assert not (one.leads and other.leads)
            if stopped is None and not one.leads:
                stopped = virtual_time.now()
            if began is None and other.leads:
                began = virtual_time.now()
            await asyncio.sleep(0.1)
        assert stopped is not None
        assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], LeaseLostError)
        if cut == "requests":
            assert began is not None
            assert began - stopped > 3
        with pytest.raises(LeaseLostError):
            one.guard()
        await settle(second)

    virtual_time.run(body())


def test_a_short_outage_does_not_cost_the_lease():
    async def body():
        a, _ = two()
        one, led = a.contender(), []
        first = asyncio.create_task(contend(one, led))
        await asyncio.sleep(10)
        a.cut = "requests"
        await asyncio.sleep(4)
        a.cut = ""
        await asyncio.sleep(30)
        assert one.leads
        assert a.leases.lease["spec"]["leaseTransitions"] == 0
        await settle(first)

    virtual_time.run(body())


def test_a_renewal_whose_answer_was_lost_is_not_a_loss():
    async def body():
        a, _ = two()
        one, led = a.contender(), []
        first = asyncio.create_task(contend(one, led))
        await asyncio.sleep(10)
        a.cut = "answers"
        before = a.leases.writes
        await virtual_time.until(lambda: a.leases.writes > before)
        a.cut = ""
        await asyncio.sleep(60)
        assert one.leads
        await settle(first)

    virtual_time.run(body())


@pytest.mark.parametrize("offset_s", [-86400.0, 86400.0])
def test_wall_clocks_that_disagree_or_jump_change_nothing(offset_s):
    async def body():
        a, b = two(wall_offset_s=offset_s)
        one, other, led = a.contender(), b.contender(), []
        tasks = [asyncio.create_task(contend(one, led))]
        await asyncio.sleep(1)
        tasks.append(asyncio.create_task(contend(other, led)))
        await asyncio.sleep(30)
        a.wall_offset_s -= offset_s
        await asyncio.sleep(120)
        assert [who for who, _ in led] == ["a"]
        assert one.leads
        await settle(*tasks)

    virtual_time.run(body())


def test_a_process_that_was_suspended_knows_at_once_that_it_no_longer_leads():
    async def body():
        a, _ = two()
        one = a.contender()
        await one.acquire()
        assert one.leads
        await asyncio.sleep(60)  # nobody called hold: the process stood still, its clock did not
        assert not one.leads
        with pytest.raises(LeaseLostError):
            one.guard()

    virtual_time.run(body())


def test_the_same_identity_after_a_restart_does_not_wait_for_itself():
    async def body():
        a, _ = two()
        await a.contender().acquire()
        began = virtual_time.now()
        await a.contender().acquire()
        assert virtual_time.now() - began < 1

    virtual_time.run(body())


def test_a_lease_that_somebody_deleted_is_written_again():
    async def body():
        a, _ = two()
        one, led = a.contender(), []
        task = asyncio.create_task(contend(one, led))
        await asyncio.sleep(5)
        a.leases.lease = None
        await asyncio.sleep(30)
        assert one.leads
        assert a.leases.lease["spec"]["holderIdentity"] == "a"
        await settle(task)

    virtual_time.run(body())


events = st.tuples(
    st.floats(0.1, 20.0), st.sampled_from([0, 1]), st.sampled_from(["requests", "answers", "", "slow", "stop", "kill"])
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(events, max_size=12), st.floats(0.85, 1.15), st.floats(0.85, 1.15))
def test_there_are_never_two_leaders(script, rate_a, rate_b):
    """Two processes, restarted when they end, under cuts, slow networks, clean stops and kills, clocks 15 % wrong."""

    async def body():
        leases = Leases()
        nodes = [Node(leases, "a", rate=rate_a), Node(leases, "b", rate=rate_b)]
        elections: list[Election | None] = [None, None]
        generations = [0, 0]

        async def process(index):
            while True:
                generations[index] += 1
                node = nodes[index]
                node.name = f"{'ab'[index]}{generations[index]}"
                election = elections[index] = node.contender()
                try:
                    await contend(election, [])
                except LeaseLostError:
                    await asyncio.sleep(1)

        async def judge():
            while True:
                assert sum(election.leads for election in elections if election) <= 1
                await asyncio.sleep(0.1)

        tasks = [asyncio.create_task(process(0)), asyncio.create_task(process(1))]
        judging = asyncio.create_task(judge())
        for pause_s, index, what in script:
            await asyncio.sleep(pause_s)
            node = nodes[index]
            match what:
                case "slow":
                    node.latency_s = 3.0
                case "stop" | "kill":
                    election = elections[index]
                    await settle(tasks[index])
                    if what == "stop":
                        await election.release()
                    elections[index] = None
                    tasks[index] = asyncio.create_task(process(index))
                case _:
                    node.cut, node.latency_s = what, 0.05
        for node in nodes:
            node.cut, node.latency_s = "", 0.05
        await asyncio.sleep(60)
        assert sum(election.leads for election in elections if election) == 1, "and in the end there is one"
        assert not judging.done()
        await settle(judging, *tasks)

    virtual_time.run(body())


class ClaimedApi:
    """The leases of namespaces, as the client's `fetch` gives them."""

    def __init__(self):
        self.spaces = {}
        self.asked = 0
        self.refusal = None

    async def fetch(self, request, *, deadline_s):
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        space = self.spaces.setdefault(request.path.split("/namespaces/")[1].split("/")[0], Leases())
        await asyncio.sleep(0.01)
        if request.method != "GET":
            return space.write(request.body)
        if space.lease is None:
            raise NotFoundError(404, "NotFound", "there is none")
        return space.lease


def claims(api, release):
    return NamespaceClaims(api, release, clock=virtual_time.now, wall=lambda: datetime(2026, 1, 1, tzinfo=UTC))


def test_a_namespace_is_one_release_s_until_it_is_left_behind_for_a_minute():
    async def body():
        api = ClaimedApi()
        ours, again, theirs = claims(api, "a/op"), claims(api, "a/op"), claims(api, "b/op")
        assert [await ours.other("team"), await theirs.other("team"), await theirs.other("own")] == ["", "a/op", ""]
        asked = api.asked
        assert await ours.other("team") == ""
        assert api.asked == asked, "what is held is not asked for each time"
        keeping = asyncio.create_task(ours.keep())
        for _ in range(20):
            await asyncio.sleep(15)
            assert await theirs.other("team") == "a/op"
        await settle(keeping)
        assert await again.other("team") == "", "a new process of the release goes on at once"
        waited = 0.0
        while await theirs.other("team"):
            await asyncio.sleep(1)
            waited += 1
        assert 55 <= waited <= 65
        assert await ours.other("team") == "b/op"
        await theirs.release()
        assert await ours.other("team") == ""

    virtual_time.run(body())


def test_workers_of_one_process_don_t_race_for_a_lease():
    async def body():
        api = ClaimedApi()
        ours = claims(api, "a/op")
        assert await asyncio.gather(*(ours.other("team") for _ in range(8))) == [""] * 8
        assert api.asked == 2, "read and written once"

    virtual_time.run(body())


def test_without_the_right_to_leases_an_operator_acts_and_a_server_that_is_away_is_no_answer(caplog):
    async def body():
        api = ClaimedApi()
        ours = claims(api, "a/op")
        api.refusal = UnreachableError("no answer")
        with pytest.raises(UnreachableError):
            await ours.other("team")
        api.refusal = ForbiddenError(403, "Forbidden", "leases is forbidden")
        assert [await ours.other("team"), await ours.other("team")] == ["", ""]

    with caplog.at_level("WARNING"):
        virtual_time.run(body())
    assert caplog.text.count("another operator may act there") == 1
