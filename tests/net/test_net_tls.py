"""Real gRPC and real Redis over TLS: nobody else gets in, nothing can be read, and rotation costs no call."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from areal import tls
from areal.errors import ConfigError, InfraError
from areal.ledger.async_client import AsyncLedger
from areal.ledger.sync_client import SyncLedger
from areal.net import channel, server
from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.processes.core import ProbeAnswer
from areal.processes.supervise import Probe, ProbeKind, Prober
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.v1 import reward_pb2 as reward
from areal.v1 import reward_pb2_grpc as reward_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ledger.ledger_samples import meta
from support.certificates import authority, leaf, put
from support.tcp_proxy import TcpProxy
from support.tls_redis import PASSWORDS, running

pytestmark = pytest.mark.component
TOKEN, PROMPT = "a-token-that-nobody-may-see", "a prompt that nobody may see"


class Scores(reward_grpc.RewardServicer):
    """Answers at once; an item with the verifier `slow` waits until the test lets it go."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def Score(self, request, context):
        if any(item.verifier == "slow" for item in request.items):
            self.begun.set()
            await self.go.wait()
        return reward.ScoreResponse()


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of this process, with certificates of `old`."""
    monkeypatch.setenv(tls.ENV_TLS_DIR, str(tmp_path / "tls"))
    return tmp_path / "tls"


@pytest.fixture
async def serve() -> AsyncIterator:
    started: list[GrpcServer] = []

    async def start(scores: Scores | None = None) -> int:
        made = GrpcServer("reward", TOKEN, waits=WaitRegistry("reward"), progress=ProgressCounter())
        made.add(reward_grpc.add_RewardServicer_to_server, scores or Scores(), "areal.v1.Reward")
        started.append(made)
        port = await made.start(0)
        await made.set_ready(True)
        return port

    yield start
    for one in started:
        await one.stop(0)


def asking(verifier: str = "exact") -> reward.ScoreRequest:
    return reward.ScoreRequest(items=[reward.ScoreItem(verifier=verifier, prompt=PROMPT)])


async def score(peer: grpc.aio.Channel, verifier: str = "exact") -> None:
    await reward_grpc.RewardStub(peer).Score(asking(verifier), timeout=30)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_sniffer_sees_token_and_prompt_only_without_tls(tmp_path, monkeypatch, serve, encrypted: bool) -> None:
    if encrypted:
        root = authority()
        monkeypatch.setenv(tls.ENV_TLS_DIR, str(put(tmp_path / "tls", leaf(root), root)))
    async with TcpProxy(await serve()) as sniffer, channel.connect(f"127.0.0.1:{sniffer.port}", TOKEN) as peer:
        await score(peer)
        seen = bytes(sniffer.seen)
    assert len(seen) > 300
    assert (TOKEN.encode() in seen, PROMPT.encode() in seen) == (not encrypted, not encrypted)


async def test_hundreds_of_calls_over_the_rotation_of_leaf_and_authority_and_none_fails(ours, serve) -> None:
    old, new = authority(), authority()
    put(ours, leaf(old), old)
    address = f"127.0.0.1:{await serve()}"
    old_identity = tls.identity()
    done = 0
    at = asyncio.Condition()

    async def call_on(peer: grpc.aio.Channel) -> None:
        nonlocal done
        while True:
            await score(peer)
            done += 1
            async with at:
                at.notify_all()

    async def calls(count: int) -> None:
        goal = done + count
        async with at, asyncio.timeout(60):
            await at.wait_for(lambda: done >= goal or any(task.done() for task in callers))

    async with channel.connect(address, TOKEN) as first, channel.connect(address, TOKEN) as second:
        callers = [asyncio.create_task(call_on(peer)) for peer in (first, first, second)]
        shown = {await certificate(address)}
        await calls(100)
        for certificate_of, trusted in ((old, (old,)), (old, (old, new)), (new, (old, new)), (new, (new,))):
            put(ours, leaf(certificate_of), *trusted)
            await calls(100)
            shown.add(await certificate(address))
        assert [task for task in callers if task.done()] == []
        for task in callers:
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    assert done >= 500
    assert len(shown) == 5  # each was shown without a restart
    async with channel.connect(address, TOKEN, own=lambda: old_identity) as late:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await score(late)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def certificate(address: str) -> str:
    host, port = address.split(":")
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))


async def test_a_call_that_goes_on_outlives_the_certificate_and_its_connection_is_closed_after_it(ours, serve) -> None:
    root, scores = authority(), Scores()
    put(ours, leaf(root), root)
    async with TcpProxy(await serve(scores)) as network, channel.connect(f"127.0.0.1:{network.port}", TOKEN) as peer:
        slow = asyncio.create_task(score(peer, "slow"))
        await scores.begun.wait()
        put(ours, leaf(root), root)
        await score(peer)
        assert (network.accepted, network.open) == (2, 2)
        scores.go.set()
        await slow
        for _ in range(2_000):
            if network.open == 1:
                break
            await asyncio.sleep(0.01)
        await score(peer)
        assert (network.accepted, network.open) == (2, 1)


async def test_who_speaks_plainly_has_no_certificate_or_asks_for_another_name_is_refused(ours, serve) -> None:
    root = authority()
    put(ours, leaf(root), root)
    address = f"127.0.0.1:{await serve()}"
    only_trust = grpc.ssl_channel_credentials(tls.identity().authorities)
    peers = (
        channel.connect(address, TOKEN, own=lambda: None),
        channel.connect(address, TOKEN, name="controller.elsewhere"),
        grpc.aio.secure_channel(address, only_trust),
    )
    for peer in peers:
        async with peer:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await score(peer)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    async with channel.connect(address, TOKEN, name="localhost") as peer:
        await score(peer)


async def test_files_that_do_not_fit_together_yet_change_nothing(ours, serve) -> None:
    root = authority()
    one, other = leaf(root), leaf(root)
    put(ours, one, root)
    address = f"127.0.0.1:{await serve()}"
    before = await certificate(address)
    put(ours, (other[0], one[1]), root)
    assert await certificate(address) == before
    async with channel.connect(address, TOKEN) as peer:
        await score(peer)
    put(ours, other, root)
    assert await certificate(address) != before


def test_a_directory_without_certificates_is_the_platforms_mistake(ours: Path) -> None:
    with pytest.raises(ConfigError, match="holds no certificate to use") as caught:
        tls.identity()
    assert "ca.crt, tls.crt and tls.key" in caught.value.fix


async def on_two_ports(serve) -> int:
    """The first of two ports in a row: the system gives the one, and somebody else may have the next."""
    for _ in range(8):
        with contextlib.suppress(InfraError):
            return await serve()
    raise AssertionError("eight times another process had the next port")


async def test_probes_are_answered_on_a_port_of_their_own_that_opens_nothing_else(ours, serve, monkeypatch) -> None:
    root = authority()
    put(ours, leaf(root), root)
    monkeypatch.setenv(server.ENV_HEALTH_SHIFT, "1")
    port = await on_two_ports(serve)
    prober = Prober(Probe(ProbeKind.GRPC, port))
    assert await prober.ask() is ProbeAnswer.READY
    put(ours, leaf(root), root)
    assert await prober.ask() is ProbeAnswer.READY
    await prober.close()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port + 1}") as kubelet:
        answer = await health_pb2_grpc.HealthStub(kubelet).Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await operations_grpc.WaitsStub(kubelet).ListWaits(operations.ListWaitsRequest(), timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


# ---- Redis


@pytest.fixture
def store(tmp_path: Path, ours: Path) -> Iterator[int]:
    """The port of a Redis whose certificate is in `ours`."""
    root = authority()
    with running(tmp_path, put(ours, leaf(root), root)) as port:
        yield port


async def test_redis_takes_a_new_certificate_and_a_new_authority_while_it_is_used(ours: Path, store: int) -> None:
    old, new = authority(), authority()
    address, password = f"127.0.0.1:{store}", PASSWORDS["controller"]
    shown: set[str] = set()
    async with AsyncLedger(address, "job", username="controller", password=password) as controller:
        await controller.claim(1)
        renewal = asyncio.create_task(controller.keep_certificate_fresh(period_s=0.05))
        first = await certificate(address)
        for certificate_of, trusted in ((old, (old,)), (old, (old, new)), (new, (old, new)), (new, (new,))):
            before = await certificate(address)
            put(ours, leaf(certificate_of), *trusted)
            for _ in range(2_000):
                await controller.advance(1, 0)
                if await certificate(address) != before:
                    break
                await asyncio.sleep(0.01)
            shown.add(await certificate(address))
            await controller._redis.connection_pool.disconnect()  # the next call dials again
            await controller.advance(1, 0)
            with SyncLedger(address, "job", username="trainer", password=PASSWORDS["trainer"]) as trainer:
                trainer.reach(5.0)
        assert not renewal.done()
        renewal.cancel()
    assert len({first, *shown}) == 5


async def test_redis_refuses_who_has_no_certificate_and_who_speaks_plainly(ours: Path, store: int) -> None:
    with SyncLedger(f"127.0.0.1:{store}", "job", username="trainer", password=PASSWORDS["trainer"]) as trainer:
        trainer.reach(20.0)
    for context in (ssl.create_default_context(cafile=ours / tls.CA_FILE), None):
        answer = b""
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", store, ssl=context)
            writer.write(b"PING\r\n")
            answer = await asyncio.wait_for(reader.read(64), 20)
            writer.close()
        assert answer == b""


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_sniffer_of_redis_sees_login_and_samples_only_without_tls(tmp_path, monkeypatch, encrypted) -> None:
    if encrypted:
        root = authority()
        monkeypatch.setenv(tls.ENV_TLS_DIR, str(put(tmp_path / "tls", leaf(root), root)))
    with running(tmp_path, tls.tls_dir()) as port:
        async with TcpProxy(port) as sniffer:
            address = f"127.0.0.1:{sniffer.port}"
            async with AsyncLedger(address, "job", username="worker", password=PASSWORDS["worker"]) as worker:
                await worker.add_sample(0, 0, PROMPT.encode(), meta())
            seen = bytes(sniffer.seen)
    assert (PASSWORDS["worker"].encode() in seen, PROMPT.encode() in seen) == (not encrypted, not encrypted)
