"""The trainer's end of the weight group: phases have deadlines and name the server that misses one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import areal.broadcast
import pytest
import torch
from areal.net.server import LoopThread
from areal.observe.waits import WaitRegistry
from areal.v1 import weights_pb2 as wire
from areal.values.policy import PolicyId
from areal.weights.manifest import Manifest
from areal_trainer.publish.group import Deadlines, GroupOptions, GroupSender
from areal_trainer.publish.sender import MemberFault, Members
from torch.distributed import HashStore

POLICY = PolicyId(3, 1)
MANIFEST = Manifest(policy="3.f1", step=3, created=0, tensors={}, files={})


class Server:
    """A member's stream without a network: what it tells, what it hears."""

    def __init__(self, members: Members, thread: LoopThread, name: str) -> None:
        self.state = wire.MemberState(server_id=name, ranks=1, able=True)
        self.heard: list[wire.GroupOrders] = []
        self._thread = thread
        self._told: asyncio.Queue[wire.MemberState | None] = asyncio.Queue()
        thread.spawn(self._listen(members))
        self.tell()

    def tell(self, **changed: object) -> None:
        for name, value in changed.items():
            setattr(self.state, name, value)
        copy = wire.MemberState.FromString(self.state.SerializeToString())
        self._thread.loop.call_soon_threadsafe(self._told.put_nowait, copy)

    def leave(self) -> None:
        self._thread.loop.call_soon_threadsafe(self._told.put_nowait, None)

    async def _states(self) -> AsyncIterator[wire.MemberState]:
        while (state := await self._told.get()) is not None:
            yield state

    async def _listen(self, members: Members) -> None:
        async for orders in members.Join(self._states(), None):  # type: ignore[arg-type]
            self.heard.append(orders)


@contextmanager
def members(clock: Callable[[], float] = lambda: 0.0) -> Iterator[tuple[Members, LoopThread]]:
    """On a clock that stands: nobody is silent."""
    thread = LoopThread()
    try:
        yield Members(thread.loop, clock), thread
    finally:
        thread.stop()


def both(of: Members, thread: LoopThread) -> tuple[Server, Server]:
    pair = Server(of, thread, "generation-0"), Server(of, thread, "generation-1")
    until(thread, lambda: len(of.able()) == 2)
    return pair


def until(thread: LoopThread, holds: Callable[[], bool]) -> None:
    for _ in range(6000):
        if holds():
            return
        thread.call(asyncio.sleep(0.01), 60)
    raise AssertionError("it never came to be")


def test_a_phase_that_is_missed_names_the_server():
    with members() as (found, thread):
        both(found, thread)
        with pytest.raises(MemberFault, match="phase join of group g: generation-1 not there after 0 s") as fault:
            found.wait("join", "g", "generation-1", lambda state: state.joined == "g", 0.1)
        assert (fault.value.phase, fault.value.late) == ("join", True)


def test_a_server_that_leaves_or_fails_ends_a_wait_before_its_deadline():
    with members() as (found, thread):
        first, second = both(found, thread)
        second.tell(failed="an earlier group", joined="g")
        first.tell(failed="g", reason="out of memory")
        until(thread, lambda: [state.failed for state in found.able().values()] == ["g", "an earlier group"])
        with pytest.raises(MemberFault, match="generation-0 failed: out of memory") as fault:
            found.wait("ready", "g", "generation-0", lambda state: False, 120.0)
        assert not fault.value.late
        second.leave()
        with pytest.raises(MemberFault, match="generation-1 is gone"):
            found.wait("join", "h", "generation-1", lambda state: False, 120.0)


def test_orders_are_a_server_s_own():
    with members() as (found, thread):
        first, second = both(found, thread)
        found.order("generation-1", wire.GroupOrders(epoch=wire.GroupEpoch(name="h")))
        until(thread, lambda: bool(second.heard) and second.heard[-1].epoch.name == "h")
        assert not any(orders.epoch.name for orders in first.heard)


def test_a_server_that_has_been_silent_takes_no_weights():
    now = [0.0]
    with members(lambda: now[0]) as (found, thread):
        first, _ = both(found, thread)
        now[0] = 6.0
        assert not found.able()
        first.tell()
        until(thread, lambda: list(found.able()) == ["generation-0"])


def test_a_version_without_a_server_goes_by_the_volume():
    with members() as (found, _):
        sender = GroupSender(found, GroupOptions("127.0.0.1"), WaitRegistry("trainer"))
        sender.propose(POLICY)
        assert not sender.offer(POLICY)
        sender.close()


def test_a_server_whose_engine_left_the_group_ends_a_wait() -> None:
    with members() as (found, thread):
        first, second = both(found, thread)
        for server in (first, second):
            server.tell(joined="g")
        until(thread, lambda: all(state.joined == "g" for state in found.able().values()))
        second.tell(joined="")
        with pytest.raises(MemberFault, match="generation-1 has left it"):
            found.wait("ready", "g", "generation-1", lambda state: False, 120.0)
        first.tell(able=False)
        with pytest.raises(MemberFault, match="generation-0 has left it"):
            found.wait("join", "h", "generation-0", lambda state: False, 120.0)


class Talk:
    """A sender without a process: every work ends at once."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.killed = False

    def tell(self, **order: object) -> None:
        self.told += order

    def hear(self, deadline_s: float, check: Callable[[], None]) -> dict[str, object]:
        check()
        if self.killed:
            raise RuntimeError("the sender ended")
        return {"port": 1}

    def kill(self) -> None:
        self.killed = True

    def close(self) -> None:
        pass


class Senders:
    """A fork server whose senders are kept."""

    def __init__(self) -> None:
        self.made: list[Talk] = []

    def keep(self) -> None:
        pass

    def fork(self, device: str, deadline_s: float) -> Talk:
        self.made.append(Talk())
        return self.made[-1]

    def close(self) -> None:
        pass


def names(sender: GroupSender) -> dict[str, str]:
    """Of the groups that are whole, by server."""
    return {server: pair.name for server, pair in sender._there().items()}


@contextmanager
def pairs(limits: Deadlines) -> Iterator[tuple[GroupSender, dict[str, Server], LoopThread, list[str]]]:
    """Two servers in their groups."""
    with members() as (found, thread):
        servers = dict(zip(("generation-0", "generation-1"), both(found, thread), strict=True))
        phases: list[str] = []
        sender = GroupSender(
            found, GroupOptions("127.0.0.1", deadlines=limits), WaitRegistry("trainer"),
            lambda phase, _seconds: phases.append(phase), senders=Senders(),
        )  # fmt: skip
        for server in servers.values():
            until(thread, lambda server=server: bool(server.heard) and bool(server.heard[-1].epoch.name))
            server.tell(joined=server.heard[-1].epoch.name)
        until(thread, lambda: len(names(sender)) == 2)
        yield sender, servers, thread, phases
        sender.close()


def test_a_server_that_hears_no_offer_or_is_not_ready_keeps_no_other_from_the_version():
    with pairs(Deadlines(join=60.0, offer=0.3, ready=0.3)) as (sender, servers, thread, phases):
        first, second = servers.values()
        for name in ("first", "second"):
            before = names(sender)
            sender.propose(POLICY)
            first.tell(offered=str(POLICY), ready=str(POLICY), received=str(POLICY))
            second.tell(offered=str(POLICY) if name == "first" else "")
            until(thread, lambda: first.heard[-1].offer.policy_id == str(POLICY))
            until(thread, lambda: sender._members.able()["generation-0"].received == str(POLICY))
            until(thread, lambda name=name: bool(sender._members.able()["generation-1"].offered) == (name == "first"))
            assert sender.offer(POLICY)
            sent = sender.send(MANIFEST, "digest", {})
            if name == "first":  # it was busy: its group goes on
                assert sent == {"generation-0": True, "generation-1": False}
                assert names(sender) == before
            else:
                assert sent == {"generation-0": True}
                assert names(sender).get("generation-1") != before["generation-1"]
            assert names(sender)["generation-0"] == before["generation-0"]
        assert [phase for phase in phases if phase.startswith("fault")] == ["fault: ready", "fault: offer"]
        until(thread, lambda: not second.heard[-1].HasField("offer"))


def test_generation_need_not_be_interrupted_before_the_first_bucket_is_built():
    with pairs(Deadlines(ready=60.0)) as (sender, servers, _thread, _):
        built: list[bool] = []
        for server in servers.values():
            server.tell(offered=str(POLICY), ready=str(POLICY), received=str(POLICY))
        sender.propose(POLICY)
        assert sender.offer(POLICY)
        for pair in sender._there().values():
            told = pair._order
            pair._order = lambda offer, pair=pair, told=told: (
                built.append("prepare" in pair._sender.told) if offer is not None and offer.sending else None,
                told(offer),
            )
        assert sender.send(MANIFEST, "digest", {}) == {"generation-0": True, "generation-1": True}
        assert built == [True, True]


class Connections:
    """Of a group in which a broadcast runs that nobody takes: closing them lasts until the timeout."""

    def __init__(self, closers: list[str]) -> None:
        self._closers = closers

    def __del__(self) -> None:
        self._closers.append(threading.current_thread().name)


def test_a_group_that_is_given_up_is_closed_by_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    closers: list[str] = []
    started = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        started(thread)
        thread.join()  # it may be done before the one that started it goes on

    monkeypatch.setattr(areal.broadcast, "_made", lambda *place: Connections(closers))
    monkeypatch.setattr(threading.Thread, "start", start)
    group = areal.broadcast.ProcessGroup("gloo", HashStore(), "g", 0, 2, timedelta(seconds=60))
    group.give_up()
    assert closers == ["areal-leave-group"]
    with pytest.raises(RuntimeError, match="the group g was given up"):
        group.broadcast(torch.zeros(1))
