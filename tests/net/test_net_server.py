"""A real server on loopback: who may call, what health says, what an error looks like on the other side."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from areal import method_access
from areal.errors import ConfigError, FencedError, InfraError
from areal.net import auth, channel, status
from areal.net.server import GrpcServer, LoopThread
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

pytestmark = pytest.mark.component
TOKEN = "a-token-for-this-test"


class Trainer(operations_grpc.TrainerControlServicer):
    """Refuses in the two ways that callers tell apart: first for the job file, then for its fence."""

    def __init__(self) -> None:
        self._refusals = iter(
            (ConfigError("maxSteps is 0", fix="set algorithm.maxSteps"), FencedError("fence 3 is older than 4"))
        )

    async def GetTrainerStatus(self, request, context):
        await status.abort(context, next(self._refusals))


async def typed(call):
    """The answer of a call, or the error that it stands for."""
    try:
        return await call
    except grpc.RpcError as error:
        status.raise_as(error)


@pytest.fixture
async def server():
    waits = WaitRegistry("trainer")
    progress = ProgressCounter()
    server = GrpcServer("trainer", TOKEN, waits=waits, progress=progress)
    server.add(operations_grpc.add_TrainerControlServicer_to_server, Trainer(), "areal.v1.TrainerControl")
    port = await server.start(0)
    yield server, f"127.0.0.1:{port}", waits, progress
    await server.stop(0)


async def test_a_call_without_the_token_is_refused(server):
    _, address, _, _ = server
    async with channel.connect(address, "another") as peer:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await operations_grpc.WaitsStub(peer).ListWaits(operations.ListWaitsRequest(), timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_health_needs_no_token_and_follows_readiness(server):
    served, address, _, _ = server
    async with grpc.aio.insecure_channel(address) as peer:
        stub = health_pb2_grpc.HealthStub(peer)
        before = await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
        await served.set_ready(True)
        after = await stub.Check(health_pb2.HealthCheckRequest(service="areal.v1.TrainerControl"), timeout=60)
    assert before.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert after.status == health_pb2.HealthCheckResponse.SERVING


async def test_every_server_lists_its_waits_and_progress(server):
    _, address, waits, progress = server
    progress.advance(3)
    async with channel.connect(address, TOKEN) as peer:
        with waits.waiting("groups", "64 groups for step 3", deadline_s=60):
            listed = await operations_grpc.WaitsStub(peer).ListWaits(operations.ListWaitsRequest(), timeout=60)
        told = await operations_grpc.ProgressStub(peer).GetProgress(operations.GetProgressRequest(), timeout=60)
    assert [(wait.name, wait.owner, wait.waits_for) for wait in listed.waits] == [
        ("groups", "trainer", "64 groups for step 3")
    ]
    assert told.progress == 3


async def test_an_error_keeps_its_kind_message_and_fix(server):
    _, address, _, _ = server
    async with channel.connect(address, TOKEN) as peer:
        stub = operations_grpc.TrainerControlStub(peer)
        with pytest.raises(ConfigError) as config:
            await typed(stub.GetTrainerStatus(operations.GetTrainerStatusRequest(), timeout=60))
        with pytest.raises(FencedError):
            await typed(stub.GetTrainerStatus(operations.GetTrainerStatusRequest(), timeout=60))
    assert (config.value.message, config.value.fix) == ("maxSteps is 0", "set algorithm.maxSteps")


async def test_an_absent_server_is_an_infra_error():
    async with channel.connect("127.0.0.1:1", TOKEN) as peer:
        stub = operations_grpc.WaitsStub(peer)
        with pytest.raises(InfraError):
            await typed(stub.ListWaits(operations.ListWaitsRequest(), timeout=1))


async def test_a_taken_port_is_named():
    first = GrpcServer("a", TOKEN, waits=WaitRegistry("a"), progress=ProgressCounter())
    port = await first.start(0)
    second = GrpcServer("b", TOKEN, waits=WaitRegistry("b"), progress=ProgressCounter())
    with pytest.raises(InfraError, match=str(port)):
        await second.start(port)
    await first.stop(0)


def test_a_loop_thread_runs_coroutines_for_a_blocking_caller():
    thread = LoopThread()

    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert thread.call(answer(), timeout_s=60) == 42
    thread.stop()


class Echo(rollout_grpc.RolloutServicer):
    """Answers each message of a stream, and is quiet in between."""

    async def Serve(self, request_iterator, context):
        async for _ in request_iterator:
            yield rollout.ServerOrders()


async def test_a_stream_that_falls_quiet_survives_the_clients_pings():
    server = GrpcServer("controller", TOKEN, waits=WaitRegistry("controller"), progress=ProgressCounter())
    server.add(rollout_grpc.add_RolloutServicer_to_server, Echo(), "areal.v1.Rollout")
    port = await server.start(0)
    eager = [*[option for option in channel.CLIENT if "keepalive_time" not in option[0]]]
    eager.append(("grpc.keepalive_time_ms", 1_000))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=eager) as peer:
        stream = rollout_grpc.RolloutStub(peer).Serve(metadata=(auth.header(TOKEN),), timeout=30)
        for _ in range(2):
            await stream.write(rollout.ServerMessage())
            assert await stream.read() == rollout.ServerOrders()
            await asyncio.sleep(6)  # the pings in question
        await stream.write(rollout.ServerMessage())
        assert await stream.read() == rollout.ServerOrders()
        stream.cancel()
    await server.stop(0)


async def test_a_request_that_is_not_its_message_is_refused_in_one_line(caplog):
    serving = GrpcServer("controller", TOKEN, waits=WaitRegistry("c"), progress=ProgressCounter())
    serving.add(rollout_grpc.add_RolloutServicer_to_server, Echo(), "areal.v1.Rollout")
    port = await serving.start(0)
    garbage, whole = b"\xff\xff\xff", rollout.ServerMessage().SerializeToString()
    async with channel.connect(f"127.0.0.1:{port}", TOKEN) as peer:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await peer.unary_unary("/areal.v1.Progress/GetProgress")(garbage, timeout=5)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        call = peer.stream_stream("/areal.v1.Rollout/Serve")(iter([whole, garbage, whole]), timeout=5)
        assert await call.read() == b""
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    await serving.stop(0)
    assert [record.exc_info for record in caplog.records if "not its message" in record.message] == [None, None]
    assert not [record for record in caplog.records if record.exc_info]


def test_the_scheme_of_a_token_has_no_case():
    access, method = method_access.one_token(TOKEN), "/areal.v1.Waits/ListWaits"
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert access.refusal(method, {"authorization": f"{scheme} {TOKEN}"}) is None
    digest = method_access.digest(TOKEN)
    for wrong in ("", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer x", f"Bearer {TOKEN}x", f"Bearer {digest}"):
        assert not access.refusal(method, {"authorization": wrong}).known, wrong
    with pytest.raises(ValueError, match="empty"):
        method_access.one_token("")


def test_health_alone_is_open():
    assert method_access.NOBODY.refusal("/grpc.health.v1.Health/Check", {}) is None
    for closed in (
        "/grpc.health.v1.HealthOfMine/Check",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/grpc.channelz.v1.Channelz/GetServers",
        "/areal.v1.Rollout/grpc.health.v1.Health/",
        "/areal.v1.Progress/GetProgress",
        "",
    ):
        assert not method_access.NOBODY.refusal(closed, {}).known, closed
