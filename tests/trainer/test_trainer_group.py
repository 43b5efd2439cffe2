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
from areal.weights.manifest import Manifest
from areal_trainer.publish.group import Deadlines, GroupOptions, GroupSender
from areal_trainer.publish.members import MemberFault, Members
from torch.distributed import HashStore

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
def members() -> Iterator[tuple[Members, LoopThread]]:
    thread = LoopThread()
    try:
        yield Members(thread.loop), thread
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
        first, _ = both(found, thread)
        first.tell(joined="g")
        until(thread, lambda: found.able()["generation-0"].joined == "g")
        with pytest.raises(MemberFault, match="phase join of group g: generation-1 not there") as fault:
            found.wait("join", "g", list(found.able()), lambda state: state.joined == "g", 1.0)
        assert fault.value.phase == "join"


def test_a_server_that_leaves_or_fails_ends_a_wait_before_its_deadline():
    with members() as (found, thread):
        first, second = both(found, thread)
        names = list(found.able())
        second.tell(failed="an earlier group", joined="g")
        first.tell(failed="g", reason="out of memory")
        until(thread, lambda: [state.failed for state in found.able().values()] == ["g", "an earlier group"])
        with pytest.raises(MemberFault, match="generation-0 failed: out of memory"):
            found.wait("ready", "g", names, lambda state: False, 120.0)
        second.leave()
        with pytest.raises(MemberFault, match="generation-1 is gone"):
            found.wait("join", "h", ["generation-1"], lambda state: False, 120.0)


def test_a_version_without_a_server_goes_by_the_volume():
    with members() as (found, _):
        sender = GroupSender(found, GroupOptions("127.0.0.1"), WaitRegistry("trainer"))
        assert not sender.offer(MANIFEST, "digest")


def test_servers_that_do_not_join_are_told_to_leave_and_the_next_group_has_another_name():
    with members() as (found, thread):
        first, _ = both(found, thread)
        faults: list[str] = []
        limits = Deadlines(join=0.5)
        sender = GroupSender(
            found,
            GroupOptions("127.0.0.1", deadlines=limits),
            WaitRegistry("trainer"),
            lambda phase, seconds: faults.append(phase),
        )
        assert not sender.offer(MANIFEST, "digest")
        assert not sender.offer(MANIFEST, "digest")
        assert faults == ["fault: join"] * 2

        def told() -> list[str]:
            return [orders.epoch.name for orders in first.heard if orders.epoch.name]

        until(thread, lambda: len(set(told())) == 2 and not first.heard[-1].HasField("epoch"))


def test_a_server_whose_engine_left_the_group_ends_a_wait() -> None:
    with members() as (found, thread):
        first, second = both(found, thread)
        for server in (first, second):
            server.tell(joined="g")
        until(thread, lambda: all(state.joined == "g" for state in found.able().values()))
        second.tell(joined="")
        with pytest.raises(MemberFault, match="generation-1 has left it"):
            found.wait("ready", "g", ["generation-0", "generation-1"], lambda state: False, 120.0)
        first.tell(able=False)
        with pytest.raises(MemberFault, match="generation-0 has left it"):
            found.wait("join", "h", ["generation-0"], lambda state: False, 120.0)


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
