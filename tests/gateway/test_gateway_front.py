"""The gateway in front of workers: keys, workers that go and come back, slow clients; over real gRPC and HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest
from areal.gateway import faults
from areal.gateway.dial import WINDOW, Tunnel
from areal.gateway.session import SessionLimits
from areal.gateway.tunnel import SERVICE_NAME, Tunnels
from areal.net.server import GrpcServer
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import gateway_pb2_grpc as rpc
from areal.workflow.tokenizer import Tokenizer
from starlette.types import Receive, Scope, Send
from support.gateway_scene import ASK, OWNER, Engine, Fronted, Scene, front, sessions_of
from support.scripted_agent import TOKEN

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]

FAR = 1 << 40  # an expiry, in seconds


@pytest.fixture
def through() -> str:
    return "gateway"


@pytest.fixture
async def gateway() -> AsyncIterator[Fronted]:
    async with front(patience_s=1.0) as made:
        yield made


def key_of(session: str) -> str:
    return faults.mint(faults.secret_of(TOKEN), session, FAR)


async def post(gateway: Fronted, key: str, path: str = "/v1/chat/completions", body: bytes = b"{}") -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(gateway.url + path, content=body, headers={"authorization": f"Bearer {key}"})


async def test_keys_are_judged_before_any_worker_is_asked(gateway: Fronted) -> None:
    answers = [
        await post(gateway, "sk-areal-made-up"),
        await post(gateway, key_of(f"{OWNER}.3.0"), "/s/another/v1/chat/completions"),
        await post(gateway, faults.mint(faults.secret_of(TOKEN), f"{OWNER}.3.0", 1)),
    ]
    assert [(one.status_code, one.json()["error"]["code"]) for one in answers] == [
        (401, "invalid_api_key"),
        (403, "wrong_session"),
        (410, "episode_over"),
    ]
    assert all(one.headers["x-should-retry"] == "false" for one in answers)
    refused = await post(gateway, "sk-areal-made-up", "/v1/messages")
    assert refused.json()["type"] == "error", "as Anthropic's clients expect it"


async def test_a_worker_that_stays_away_is_the_platforms_fault(gateway: Fronted) -> None:
    answer = await post(gateway, key_of(f"{OWNER}.3.0"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "worker_unreachable")
    assert "retry-after-ms" in answer.headers


async def test_a_worker_that_started_again_has_ended_its_sessions(tokenizer: Tokenizer) -> None:
    server, engine = sessions_of(tokenizer, OWNER), Engine(tokenizer)
    access = server.open("3.0", engine, SessionLimits(16, 4096, 32), lives_s=600, address="http://nowhere")
    engine.let.clear()
    successor = "worker-0.99999999"
    async with front() as gateway:
        async with gateway.dialled(server.app(), OWNER):
            under_way = asyncio.create_task(
                post(gateway, access.api_key, body=b'{"messages":[{"role":"user","content":"q"}]}')
            )
            await engine.until_asked(1)
        async with gateway.dialled(sessions_of(tokenizer, successor).app(), successor):
            answers = [await under_way, await post(gateway, access.api_key)]
    assert [(one.status_code, one.json()["error"]["code"]) for one in answers] == [(410, "episode_over")] * 2
    assert "started again" in answers[0].json()["error"]["message"]


async def test_a_call_whose_stream_breaks_is_handed_on_again_and_joins(tokenizer: Tokenizer) -> None:
    server, engine = sessions_of(tokenizer, OWNER), Engine(tokenizer)
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(front())
        scene = Scene(
            server, engine, server.open("3.0", engine, SessionLimits(16, 4096, 32), lives_s=600, address=gateway.url)
        )
        stack.push_async_callback(scene.client.aclose)
        engine.let.clear()
        async with gateway.dialled(server.app(), OWNER):
            asked = asyncio.create_task(scene.ask(ASK))
            await engine.until_asked(1)
        await stack.enter_async_context(gateway.dialled(server.app(), OWNER))
        engine.let.set()
        answer = await asked
    assert answer.json()["choices"][0]["message"]["content"] == "the"
    assert len(engine.asked) == 1, "joined, not generated again"
    assert gateway.metrics.counter("areal_gateway_resent_total")._value.get() == 1


async def test_a_large_request_arrives_whole_and_one_too_large_is_refused(gateway: Fronted) -> None:
    seen = bytearray()

    async def count(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            seen.extend(message["body"])
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    body = bytes(range(256)) * (5 << 12)  # 5 MiB
    async with gateway.dialled(count, OWNER):
        assert (await post(gateway, key_of(f"{OWNER}.3.0"), body=body)).text == "ok"
        assert seen == body
        assert (await post(gateway, key_of(f"{OWNER}.3.0"), body=b"x" * (17 << 20))).status_code == 413


async def test_a_client_that_does_not_read_stops_the_answer_and_gets_all_of_it_later(gateway: Fronted) -> None:
    chunk, chunks = b"x" * 65536, 1024
    sent, stopped = 0, asyncio.Event()

    async def pour(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(chunks):
            await send({"type": "http.response.body", "body": chunk, "more_body": number + 1 < chunks})
            sent += 1
            if sent * len(chunk) > WINDOW:
                stopped.set()

    headers = {"authorization": f"Bearer {key_of(f'{OWNER}.3.0')}"}
    async with (
        gateway.dialled(pour, OWNER),
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{gateway.url}/v1/any", headers=headers) as response,
    ):
        async with asyncio.timeout(60):
            await stopped.wait()
        assert sent < chunks, "what nobody reads isn't sent"
        assert len(await response.aread()) == len(chunk) * chunks


async def test_a_client_that_leaves_is_told_to_the_worker(gateway: Fronted) -> None:
    left = asyncio.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    headers = {"authorization": f"Bearer {key_of(f'{OWNER}.3.0')}"}
    async with gateway.dialled(wait, OWNER), httpx.AsyncClient(timeout=60) as client:
        async with client.stream("POST", f"{gateway.url}/v1/any", headers=headers) as response:
            assert await anext(response.aiter_bytes()) == b"begun"
        async with asyncio.timeout(60):
            await left.wait()


async def test_a_gateway_that_is_gone_is_waited_for_until_it_is_back() -> None:
    async def serve(port: int) -> tuple[GrpcServer, int]:
        server = GrpcServer("gateway-0", TOKEN, waits=WaitRegistry("g"), progress=ProgressCounter())
        tunnels = Tunnels(WaitRegistry("g"), RoleMetrics("gateway", "job").gauge("areal_gateway_workers"))
        server.add(rpc.add_GatewayServicer_to_server, tunnels, SERVICE_NAME)
        return server, await server.start(port)

    def lost() -> list[str]:
        return [wait.waits_for for wait in waits.list() if wait.name == "gateway.lost"]

    async def until(expected: list[str]) -> None:
        for _ in range(3000):
            if lost() == expected and (expected or not waits.list()):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(waits.list())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("nobody asks")

    waits = WaitRegistry("w")
    server, port = await serve(0)
    address = f"127.0.0.1:{port}"
    tunnel = Tunnel(address, TOKEN, app, owner=OWNER, waits=waits)
    tunnel.start()
    assert lost() == [f"{address} to answer"], "until it was reached"
    await until([])
    await server.stop(0)
    await until([f"{address} to answer"])
    server, _ = await serve(port)
    await until([])
    await server.stop(0)
    await until([f"{address} to answer"])
    await tunnel.close()
    assert lost() == []
