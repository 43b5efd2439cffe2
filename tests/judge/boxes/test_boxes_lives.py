"""How boxes begin, are found again, and end: by their context, their lease, their holder, their program."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from areal.clients.boxes import BoxClient, BoxLimits
from areal.errors import DataError, InfraError
from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import boxes_pb2 as pb
from areal.v1 import boxes_pb2_grpc as rpc
from areal.values.boxes import BoxEndCause, BoxEndedError
from areal_judge.boxes.service import SERVICE_NAME
from boxes.conftest import TOKEN, Served

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]
LONG_S = 120.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_the_same_name_is_the_same_box_with_its_state(served: Served, client: BoxClient) -> None:
    async with client.box(work_s=600, name="adopted") as first:
        await first.bash("inner=mine; echo kept > file", timeout_s=LONG_S)
        other = served.client()
        async with other.box(work_s=600, name="adopted") as second:
            seen = await second.bash("echo $inner; cat file", timeout_s=LONG_S)
            assert seen.output == b"mine\nkept\n"
        await other.close()
        with pytest.raises(DataError, match="closed"):
            await first.bash("true")


async def test_a_hundred_creations_of_one_name_make_one_box(served: Served, client: BoxClient) -> None:
    before = served.stack.registry.created
    requests = [pb.CreateBoxRequest(id="once", lease_ms=60_000) for _ in range(100)]
    states = await asyncio.gather(*(client._stub.CreateBox(one, timeout=60) for one in requests))
    assert sum(state.created for state in states) == 1
    assert served.stack.registry.created == before + 1
    await client._let_go("once")


async def test_a_name_with_other_content_is_refused(client: BoxClient) -> None:
    async with client.box(work_s=600, name="one content", files={"a": b"1"}):
        with pytest.raises(DataError, match="other limits or files"):
            async with client.box(work_s=600, name="one content", files={"a": b"2"}):
                pass


async def test_the_name_of_an_ended_box_is_not_used_again(client: BoxClient) -> None:
    async with client.box(work_s=600, name="once only"):
        pass
    with pytest.raises(DataError, match="closed"):
        async with client.box(work_s=600, name="once only"):
            pass


async def test_a_command_that_is_sent_twice_runs_once(client: BoxClient) -> None:
    async with client.box(work_s=600, name="twice") as box:
        request = pb.RunInBoxRequest(
            id=box.name, call=7, language=pb.BOX_LANGUAGE_BASH, source="echo x >> log; wc -l < log", timeout_ms=60_000
        )
        answers = await asyncio.gather(*(client._stub.RunInBox(request, timeout=60) for _ in range(5)))
        assert {answer.output for answer in answers} == {b"1\n"}


async def test_a_box_whose_lease_ended_is_an_infrastructure_fault(served: Served, client: BoxClient) -> None:
    await client._stub.CreateBox(pb.CreateBoxRequest(id="short", lease_ms=60_000), timeout=60)
    await client._stub.RenewBox(pb.RenewBoxRequest(id="short", lease_ms=1), timeout=60)
    await until(lambda: served.stack.registry.ends[BoxEndCause.EXPIRED] > 0)
    with pytest.raises(InfraError, match="expired"):
        async with client.box(work_s=600, name="short"):
            pass


async def test_a_client_keeps_its_boxes_leases_while_it_lives(served: Served, client: BoxClient) -> None:
    async with client.box(work_s=1.5, scoring_s=0.0, name="kept") as box:
        await box.bash("inner=1", timeout_s=LONG_S)
        renewals = served.stack.registry.state("kept")[0]
        await until(lambda: served.stack.registry.state("kept")[0] > renewals)
        assert (await box.bash("echo $inner", timeout_s=LONG_S)).output == b"1\n"


async def left_open(client: BoxClient, name: str) -> None:
    """A box that its holder makes and never closes."""
    client._hold()
    await client._stub.CreateBox(pb.CreateBoxRequest(id=name, holder=client.holder, lease_ms=600_000), timeout=60)


async def test_boxes_of_a_holder_that_went_end_after_the_grace(served: Served) -> None:
    lost = served.client()
    for number in range(3):
        await left_open(lost, f"lost {number}")
    ended = served.stack.registry.ends[BoxEndCause.DISCONNECTED]
    assert served.stack.registry.boxes_of(lost.holder) == 3
    await lost.close()
    await until(lambda: served.stack.registry.boxes_of(lost.holder) == 0)
    assert served.stack.registry.ends[BoxEndCause.DISCONNECTED] == ended + 3


async def test_a_holder_that_is_there_by_another_stream_keeps_its_boxes(served: Served) -> None:
    registry = served.stack.registry
    first, second = served.client("a holder"), served.client("a holder")
    await left_open(first, "found again")
    await left_open(second, "another")
    await until(lambda: registry._holders["a holder"] == 2)
    await first.close()
    await until(lambda: registry._holders["a holder"] == 1)
    async with second.box(work_s=600, name="found again") as again:
        assert (await again.bash("echo here", timeout_s=LONG_S)).output == b"here\n"
    await second.close()
    await until(lambda: registry.boxes_of("a holder") == 0)


async def test_a_program_that_ends_its_box_is_its_own_fault(client: BoxClient) -> None:
    async with client.box(work_s=600) as box:
        with pytest.raises(BoxEndedError) as ended:
            await box.bash("kill -9 $PPID; sleep 1000", timeout_s=LONG_S)
        assert ended.value.end.cause is BoxEndCause.PROGRAM
        with pytest.raises(BoxEndedError):
            await box.read("any")


async def test_a_box_that_eats_its_memory_says_so(client: BoxClient) -> None:
    async with client.box(work_s=600, limits=BoxLimits(memory_bytes=64 << 20)) as box:
        eaten = await box.python("b = bytearray(1 << 30)", timeout_s=LONG_S)
        assert eaten.code != 0  # killed by its group, or refused the memory
        with pytest.raises(BoxEndedError) as ended:
            await box.bash("kill -9 $PPID; sleep 1000", timeout_s=LONG_S)
        assert ended.value.end.cause.of_program


async def test_a_lost_machine_is_an_infrastructure_fault(served: Served, client: BoxClient) -> None:
    async with client.box(work_s=600) as box:
        await box.bash("true", timeout_s=LONG_S)
        lost = served.stack.sandbox.zygotes()
        for zygote in lost:
            (task,) = [
                one.process for profile in served.stack.sandbox._profiles.values() for one in profile.zygotes()
                if one.process.pid == zygote.pid
            ]  # fmt: skip
            task.kill()
        with pytest.raises(InfraError):
            await box.bash("sleep 1000", timeout_s=LONG_S)
    await all_back(served, {zygote.pid for zygote in lost})
    async with client.box(work_s=600) as fresh:
        assert (await fresh.bash("echo up", timeout_s=LONG_S)).output == b"up\n"


async def all_back(served: Served, lost: set[int]) -> None:
    """Until others are up in the place of those that were lost: one whose death isn't seen yet may be asked."""
    sandbox = served.stack.sandbox
    await until(lambda: len({zygote.pid for zygote in sandbox.zygotes()} - lost) == len(lost))
    await until(lambda: not {zygote.pid for zygote in sandbox.zygotes()} & lost)


async def boxes_again(client: BoxClient, tries: int) -> None:
    """Tries that many boxes until one works: spares whose death isn't seen yet may be asked once each."""
    for _ in range(tries):
        with contextlib.suppress(InfraError):
            async with client.box(work_s=600) as fresh:
                assert (await fresh.bash("echo up", timeout_s=LONG_S)).output == b"up\n"
            return
    pytest.fail("no box works")


def cells(served: Served) -> list[psutil.Process]:
    """All processes below the zygotes."""
    return [one for zygote in served.stack.sandbox.zygotes() for one in psutil.Process(zygote.pid).children(True)]


def number_inside(process: psutil.Process) -> int:
    """The process's number in the innermost namespace that it is in; 0 when it is gone."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])
    return 0


def named(served: Served, *words: str) -> list[psutil.Process]:
    """Processes of cells with this command line."""
    found = []
    for process in cells(served):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] * (process.cmdline() == [*words])
    return found


async def test_a_box_that_is_killed_from_outside_in_a_command_is_an_infrastructure_fault(
    served: Served, client: BoxClient
) -> None:
    async with client.box(work_s=600) as box:
        running = asyncio.create_task(box.bash("sleep 1234.5", timeout_s=LONG_S))
        await until(lambda: running.done() or bool(named(served, "sleep", "1234.5")))
        assert not running.done(), running.exception()
        (sleeper,) = named(served, "sleep", "1234.5")
        next(parent for parent in sleeper.parents() if number_inside(parent) == 1).kill()
        with pytest.raises(InfraError, match="the first process of a cell was lost"):
            await running


async def test_a_box_that_is_killed_before_anything_ran_in_it_is_an_infrastructure_fault(
    served: Served, client: BoxClient
) -> None:
    async with client.box(work_s=600) as box:
        for process in cells(served):
            if number_inside(process) == 2:  # what serves a box, or is to serve the next one
                process.kill()
        await until(lambda: not served.stack.registry.live)
        with pytest.raises(InfraError, match="killed from outside"):
            await box.bash("true", timeout_s=LONG_S)
    await boxes_again(client, tries=20)  # those that waited were killed, too


async def test_an_unknown_box_is_an_infrastructure_fault(client: BoxClient) -> None:
    async with client.box(work_s=600) as box:
        box.name = "from another life of the service"
        with pytest.raises(InfraError, match="unknown"):
            await box.bash("true")


async def test_a_service_that_is_gone_is_waited_for_until_it_answers(served: Served) -> None:
    async def serve(port: int) -> tuple[GrpcServer, int]:
        server = GrpcServer("boxes", TOKEN, waits=WaitRegistry("boxes"), progress=ProgressCounter())
        server.add(rpc.add_BoxesServicer_to_server, served.stack.service, SERVICE_NAME)
        return server, await server.start(port)

    server, port = await serve(0)
    waits = WaitRegistry("w")
    client = BoxClient(f"127.0.0.1:{port}", TOKEN, waits=waits)
    try:
        await client.census()
        assert waits.list() == []
        await server.stop(0)
        asking = asyncio.create_task(client.census())
        await until(lambda: [wait.name for wait in waits.list()] == ["boxes.lost"])
        server, _ = await serve(port)
        await asyncio.wait_for(asking, 60)
        assert waits.list() == []
    finally:
        await client.close()
        await server.stop(1)
