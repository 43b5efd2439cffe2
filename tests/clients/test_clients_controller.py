"""A worker's stream: beats, reconnection, and what is said first."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from areal.clients.controller import WorkClient
from areal.net.heartbeat import PERIOD_S
from areal.observe.waits import WaitRegistry
from areal.v1 import rollout_pb2 as wire
from support.scripted_agent import TOKEN
from support.scripted_controller import ScriptedController

pytestmark = pytest.mark.component


@pytest.fixture
async def controller():
    controller = await ScriptedController().start()
    yield controller
    await controller.die()


@pytest.fixture
async def heard():
    return []


@pytest.fixture
async def waits():
    return WaitRegistry("w")


def made(address, heard, waits) -> WorkClient:
    return WorkClient(
        address,
        TOKEN,
        hello=lambda: wire.WorkerMessage(worker_id="hello"),
        report=lambda: wire.WorkerMessage(worker_id="report"),
        on_orders=heard.append,
        waits=waits,
    )


@pytest.fixture
async def client(controller, heard, waits):
    client = made(controller.address, heard, waits)
    client.start()
    yield client
    await client.close()


async def test_a_stream_begins_with_hello_and_goes_on_beating(client, controller):
    began = time.monotonic()
    await controller.until(lambda: len(controller.messages) >= 4)
    assert [message.worker_id for message in controller.messages[:4]] == ["hello", "report", "report", "report"]
    assert time.monotonic() - began >= 2 * PERIOD_S


async def test_news_does_not_wait_for_the_beat(client, controller):
    await controller.until(lambda: bool(controller.messages))
    async with asyncio.timeout(9 * PERIOD_S):
        for _ in range(10):
            heard = len(controller.messages)
            client.wake()
            await controller.until(lambda heard=heard: len(controller.messages) > heard)
    assert len(controller.messages) >= 11, "hello and ten reports, in less time than ten beats"


async def test_the_last_report_is_read_before_the_stream_ends(controller, heard, waits):
    for number in range(40):
        said = []

        def report(said=said, number=number):
            said.append(f"{number}-{len(said)}")
            return wire.WorkerMessage(worker_id=said[-1])

        client = WorkClient(
            controller.address,
            TOKEN,
            hello=lambda: wire.WorkerMessage(worker_id="hello"),
            report=report,
            on_orders=heard.append,
            waits=waits,
        )
        client.start()
        await controller.until(lambda number=number: len(controller.streams) > number and bool(controller.streams[-1]))
        client.wake()
        await asyncio.sleep(0.001 * (number % 8))  # before, while and after a report is on its way
        before = len(said)
        assert await client.finish(5.0)
        await client.close()
        assert len(said) > before
        assert controller.streams[-1][-1].worker_id == said[-1]


async def test_a_last_report_that_nobody_reads_is_said(client, controller):
    await controller.until(lambda: bool(controller.messages))
    await controller.die()
    assert not await client.finish(0.3)


async def test_a_cancellation_that_a_call_swallows_still_ends_the_stream(heard, waits, monkeypatch):
    """The core raises an error of its own when a call is cancelled while its peer goes."""
    client, streaming = made("127.0.0.1:1", heard, waits), asyncio.Event()

    async def stream() -> str:
        streaming.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "INTERNAL: Internal error from Core"

    monkeypatch.setattr(client, "_stream", stream)
    client.start()
    async with asyncio.timeout(10):
        await streaming.wait()
        await client.close()


async def test_orders_arrive(client, controller, heard):
    controller.send(committed_group=7)
    await controller.until(lambda: any(orders.committed_group == 7 for orders in heard))
    assert client.connected


async def test_a_broken_stream_is_opened_again_with_a_new_hello(client, controller, waits):
    await controller.until(lambda: bool(controller.messages))
    await controller.die()
    await controller.start()
    await controller.until(lambda: len(controller.streams) >= 2 and bool(controller.streams[-1]))
    assert controller.streams[-1][0].worker_id == "hello"
    assert waits.list() == []
