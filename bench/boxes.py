"""Boxes benchmark: how fast boxes are made and answer, what idle ones hold, and what random disconnects leave.

The service runs in a process of its own and is asked over gRPC. Beside the rates stand limits measured in the same run:
one-shot runs of the same sandbox and shape, and starts of a bare bash.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import psutil
import report
from areal.clients.boxes import BoxClient
from areal.errors import ArealError
from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import boxes_pb2 as pb
from areal.v1 import boxes_pb2_grpc as rpc
from areal_judge.boxes.box import BOX_LIMITS
from areal_judge.boxes.registry import BoxBounds
from areal_judge.boxes.service import SERVICE_NAME, BoxSettings, BoxStack, box_stack
from areal_judge.sandbox.values import ProgramRun, PythonScript

TOKEN = "of-a-benchmark"
GRACE_S = 0.2
CREATES_GOAL, P50_GOAL_MS = 100, 50.0
IDLE_GOAL_BYTES = 4 << 30  # of a thousand


async def serve(boxes: int) -> None:
    """Serves until its standard input ends; writes its port, and then the rate of one-shot runs when asked."""
    async with box_stack(BoxSettings(BoxBounds(boxes=boxes, starting=16, grace_s=GRACE_S))) as stack:
        server = GrpcServer("boxes", TOKEN, waits=WaitRegistry("boxes"), progress=ProgressCounter())
        server.add(rpc.add_BoxesServicer_to_server, stack.service, SERVICE_NAME)
        print(await server.start(0), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(await one_shots(stack, int(line)), flush=True)
        await server.stop(0.5)


async def one_shots(stack: BoxStack, count: int) -> float:
    """Runs a second of programs that do nothing, four at a time, in cells of a box's shape."""
    turns = asyncio.Semaphore(4)

    async def one() -> None:
        async with turns:
            await stack.sandbox.run(ProgramRun(PythonScript(""), limits=BOX_LIMITS))

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return count / (time.perf_counter() - began)


@contextlib.asynccontextmanager
async def service(boxes: int) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A service in a process of its own, and its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--serve", str(boxes), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    port = int(await process.stdout.readline())
    try:
        yield process, f"127.0.0.1:{port}"
    finally:
        process.stdin.close()
        await process.wait()


def client_of(address: str, holder: str = "") -> BoxClient:
    return BoxClient(address, TOKEN, waits=WaitRegistry("bench"), holder=holder)


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


async def creates(client: BoxClient, count: int, at_once: int) -> tuple[float, list[float]]:
    """Boxes a second, each made and closed, and the milliseconds of each creation."""
    took: list[float] = []

    async def maker(number: int) -> None:
        for turn in range(count // at_once):
            name = f"{at_once}-{number}-{turn}-{random.random()}"
            request = pb.CreateBoxRequest(id=name, lease_ms=600_000)
            took.append(await timed(lambda request=request: client._stub.CreateBox(request, timeout=60)))
            await client._stub.CloseBox(pb.CloseBoxRequest(id=name), timeout=60)

    began = time.perf_counter()
    await asyncio.gather(*(maker(number) for number in range(at_once)))
    return len(took) / (time.perf_counter() - began), took


async def commands(client: BoxClient, count: int) -> dict[str, float]:
    """Medians of milliseconds: first and later commands of each language."""
    first: dict[str, list[float]] = {"first bash": [], "first python": []}
    later: dict[str, list[float]] = {"bash": [], "python": []}
    for _ in range(10):
        async with client.box(work_s=600) as box:
            first["first bash"].append(await timed(lambda box=box: box.bash("true")))
            first["first python"].append(await timed(lambda box=box: box.python("1")))
            for _ in range(count // 10):
                later["bash"].append(await timed(lambda box=box: box.bash("true")))
                later["python"].append(await timed(lambda box=box: box.python("1")))
    return {name: statistics.median(took) for name, took in (first | later).items()}


async def idle_bytes(pid: int, client: BoxClient, count: int) -> float:
    """Bytes that an idle box holds, which has had a command of each language: proportional, of all its processes."""
    before = _held(pid)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            box = await stack.enter_async_context(client.box(work_s=600))
            await box.bash("true")
            await box.python("1")
        return (_held(pid) - before) / count


def _held(pid: int) -> int:
    held = 0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            held += process.memory_full_info().pss
    return held


async def disconnects(address: str, count: int, holders: int = 16) -> pb.BoxCensus:
    """Holders that vanish at a random moment of a box's life, whatever it does; what is left afterwards."""
    left, drawn = iter(range(count)), random.Random(0)

    async def holder() -> None:
        for _ in left:
            client = client_of(address)
            client._hold()
            life = asyncio.create_task(_life(client))
            await asyncio.wait([life], timeout=drawn.choice((0.0, 0.005, 0.02, 0.1, 0.3)))
            await client.close()
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)

    await asyncio.gather(*(holder() for _ in range(holders)))
    observer = client_of(address)
    try:
        while True:
            census = await observer.census()
            gone = census.processes <= census.process_floor and census.groups <= census.group_floor
            if census.live == 0 and gone:
                return census
            await asyncio.sleep(0.2)
    finally:
        await observer.close()


async def _life(client: BoxClient) -> None:
    name = f"{client.holder}-box"
    request = pb.CreateBoxRequest(id=name, holder=client.holder, lease_ms=600_000)
    with contextlib.suppress(ArealError):
        await client._stub.CreateBox(request, timeout=60)
        run = pb.RunInBoxRequest(
            id=name, call=1, language=pb.BOX_LANGUAGE_BASH, source="sleep 1000 & setsid sleep 1000 & echo x > /tmp/x",
            timeout_ms=60_000,
        )  # fmt: skip
        await client._stub.RunInBox(run, timeout=60)
        await asyncio.sleep(60)


def cpu_s(pid: int) -> float:
    """Processor time of the service and of all below it so far, ended processes included."""
    spent = 0.0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            spent += times.user + times.system + times.children_user + times.children_system
    return spent


def bare_bash(count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        subprocess.run(["bash", "--norc", "-c", "true"], check=True)
    return (time.perf_counter() - began) * 1000 / count


async def main(arguments: argparse.Namespace) -> None:
    async with service(max(128, arguments.live)) as (process, address):
        client = client_of(address)
        await creates(client, 100, 4)  # warm
        figures, latencies, before_s, shots_s = [], {}, cpu_s(process.pid), 0.0
        for at_once in (1, 4, 16):
            rates, took = [], []
            for _ in range(arguments.rounds):
                rate, each = await creates(client, arguments.count, at_once)
                rates.append(rate)
                took += each
            at = cpu_s(process.pid)
            process.stdin.write(b"%d\n" % arguments.count)
            limit = float(await process.stdout.readline())
            shots_s += cpu_s(process.pid) - at
            name = f"boxes made and closed, {at_once} at once"
            figures.append(report.Figure(name, "boxes/s", statistics.median(rates), limit, "one-shot runs, same shape"))
            took.sort()
            latencies[f"create, {at_once} at once"] = (took[len(took) // 2], took[int(len(took) * 0.99)])
        made = len(figures) * arguments.rounds * (arguments.count - arguments.count % 16)
        cpu_ms = (cpu_s(process.pid) - before_s - shots_s) * 1000 / made
        medians = await commands(client, 100)
        bash_ms = bare_bash(50)
        idle = await idle_bytes(process.pid, client, arguments.live)
        await client.close()
        before = time.perf_counter()
        census = await disconnects(address, arguments.disconnects)
        took_s = time.perf_counter() - before
    goals = {"creates_s": CREATES_GOAL, "p50_ms": P50_GOAL_MS, "idle_bytes_of_1000": IDLE_GOAL_BYTES}
    more = {"latencies_ms": latencies, "commands_ms": medians, "bare_bash_ms": bash_ms, "cpu_ms_a_box": cpu_ms}
    left = {"disconnects": arguments.disconnects, "left": census.live, "created": census.created_total}
    report.report("boxes", figures, **more, idle_bytes_a_box=idle, goals=goals, **left)
    print(f"  {'processor time of a box, made and closed':<44} {cpu_ms:>11.1f} ms   (two cores: {2000 / cpu_ms:.0f} a "
          f"second, goal {CREATES_GOAL}; clients apart)")  # fmt: skip
    for name, (middle, late) in latencies.items():
        print(f"  {name:<44} p50 {middle:>7.1f} ms   p99 {late:>7.1f} ms   (goal: p50 {P50_GOAL_MS:.0f} ms warm)")
    for name, value in medians.items():
        print(f"  {name + ' command':<44} p50 {value:>7.1f} ms   (a bare bash starts and ends in {bash_ms:.1f} ms)")
    print(f"  an idle box with a shell and an interpreter  {idle / 2**20:>11.1f} MiB"
          f"   (goal: {IDLE_GOAL_BYTES / 1000 / 2**20:.1f})")  # fmt: skip
    print(
        f"  {arguments.disconnects} random disconnects in {took_s:.0f} s: {census.live} boxes left, {census.processes} "
        f"processes (≤ {census.process_floor} wait for a box), {census.groups} groups (≤ {census.group_floor}), "
        f"{census.created_total} made, {census.ended_total} ended, load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=200, help="boxes a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--live", type=int, default=100, help="idle boxes at once")
    parser.add_argument("--disconnects", type=int, default=500)
    chosen = parser.parse_args()
    asyncio.run(serve(chosen.serve) if chosen.serve else main(chosen))
