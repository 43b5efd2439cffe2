"""Certificates of jobs by cert-manager: each landing without it, every night with its own controllers."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from areal import tls
from areal.ledger.async_client import AsyncLedger
from areal.net import channel
from areal.net.http_server import HttpServer
from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.plan import cluster_names as names
from areal.plan.cluster_names import Role
from areal.tls import TlsIdentity, https_client, https_server
from areal.v1 import reward_pb2 as reward
from areal.v1 import reward_pb2_grpc as reward_grpc
from areal_operator.operator.times import RETRY_REFUSED_S
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from kube import cert_manager, operators
from kube.cert_manager import CertManager
from kube.harness.client import Client
from kube.harness.control_plane import Cluster
from kube.harness.processes import eventually
from kube.jobs import Object, condition, read, rljob, wait_for
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from support.certificates import authority, leaf
from support.scripted_pods import ScriptedPods
from support.tls_redis import PASSWORDS, running

pytestmark = pytest.mark.kube_api
TOKEN = "a-token"
LOGIN: dict[str, Any] = {"username": "controller", "password": PASSWORDS["controller"]}
BY_CERT_MANAGER = ("tls.mode=CertManager",)
HELD = {"test.areal.dev/hold": "true"}  # as a kubelet holds a pod whose Secret isn't there


@pytest.fixture(scope="module", autouse=True)
def rights(ground: operators.Ground) -> Iterator[None]:
    """The operator has what the chart gives with this mode, and no more."""
    admin = ground.cluster.admin
    for obj in operators.rendered("rbac-operator", values=BY_CERT_MANAGER):
        admin.apply(obj)
    yield
    for obj in operators.rendered("rbac-operator"):
        admin.apply(obj)


@pytest.fixture(scope="module")
def real(cluster: Cluster, workplace: Path) -> Iterator[CertManager]:
    """cert-manager itself."""
    one = CertManager(cluster, workplace / "log")
    try:
        one.start()
        yield one
    finally:
        one.stop()


def encrypted(admin: Client, namespace: str, *, held: bool = False, **told: str) -> Object:
    """A job whose runtime is the chart's with this mode; `told` is more of its `tls`. `held`: its pods don't start."""
    [spec] = [
        each["spec"]
        for obj in operators.rendered("runtimes", values=BY_CERT_MANAGER)
        for each in operators.runtimes_in(obj)
        if each["metadata"]["name"] == operators.RUNTIME
    ]
    assert spec["tls"] == {"mode": "CertManager"}
    spec["tls"] |= told
    runtime = {"name": "by-cert-manager", "namespace": namespace}
    admin.create({"apiVersion": "areal.dev/v1alpha1", "kind": "RLRuntime", "metadata": runtime, "spec": spec})
    pods = {role: {"annotations": HELD} for role in ("trainer", "generation")} if held else {}
    return rljob(
        namespace,
        runtimeRef={"kind": "RLRuntime", "name": "by-cert-manager"},
        rollout={"gateway": {"replicas": 1}},
        reward={"verifier": "math"},
        podTemplate=pods,
    )


def idle(job: Object) -> Object:
    """What its status says that it waits for; empty while nothing."""
    return dict(job.get("status", {}).get("idle", {}))


def waits(admin: Client, namespace: str, cause: str, words: str = "") -> Object:
    """The job, once its status says that it waits for this; empty before."""
    job = read(admin, namespace)
    return job if idle(job).get("cause") == cause and words in idle(job)["text"] else {}


def certified(admin: Client, namespace: str, above: str = "", *, keeps_key: bool = True) -> dict[str, TlsIdentity]:
    """What each holder of a new job has, by an Issuer `areal`, whose authority the Issuer `above` has signed."""
    if above:
        cert_manager.authority(admin, namespace, above)
    cert_manager.authority(admin, namespace, above=above, keeps_key=keeps_key)
    admin.create(encrypted(admin, namespace))
    holders = cert_manager.issued(admin, namespace)
    return {who: cert_manager.identity(admin, namespace, names.tls_secret("tiny", who)) for who in holders}


class Scores(reward_grpc.RewardServicer):
    """Answers at once."""

    async def Score(self, request: object, context: object) -> reward.ScoreResponse:
        return reward.ScoreResponse()


@asynccontextmanager
async def serving(role: Role) -> AsyncIterator[str]:
    """The address of a role's server, with the product's settings and this process' certificates."""
    made = GrpcServer(role, TOKEN, waits=WaitRegistry(role), progress=ProgressCounter())
    made.add(reward_grpc.add_RewardServicer_to_server, Scores(), "areal.v1.Reward")
    port = await made.start(0)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await made.stop(0)


async def score(address: str, own: TlsIdentity | None, name: str) -> None:
    """One call on a connection of its own."""
    async with channel.connect(address, TOKEN, own=lambda: own, name=name) as peer:
        await reward_grpc.RewardStub(peer).Score(reward.ScoreRequest(), timeout=30)


@asynccontextmanager
async def calling(
    address: str, name: str, own: Callable[[], TlsIdentity]
) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """Callers that call on and on; what is given waits for so many calls more. Raises what a call raised."""
    done, at = 0, asyncio.Condition()

    async def call_on(peer: grpc.aio.Channel) -> None:
        nonlocal done
        while True:
            await reward_grpc.RewardStub(peer).Score(reward.ScoreRequest(), timeout=30)
            async with at:
                done += 1
                at.notify_all()

    async def calls(count: int) -> None:
        goal = done + count
        async with at, asyncio.timeout(60):
            await at.wait_for(lambda: done >= goal or any(task.done() for task in callers))
        for task in callers:
            if task.done():
                await task

    async with channel.connect(address, TOKEN, own=own, name=name) as peer:
        callers = [asyncio.create_task(call_on(peer)) for _ in range(2)]
        yield calls
        assert not any(task.done() for task in callers)
        for task in callers:
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)


async def certificate(address: str) -> str:
    """That a server shows now, as PEM."""
    host, port = address.split(":")
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))


async def ping(port: int, certificates: Path | None, name: str) -> bytes:
    """A Redis' answer to a client with these certificates (None: a plain one) who asks for the name; empty: none."""
    context = None
    if certificates is not None:
        context = ssl.create_default_context(cafile=certificates / tls.CA_FILE)
        context.load_cert_chain(certificates / tls.CERTIFICATE_FILE, certificates / tls.KEY_FILE)
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=name if context else None
        )
        try:
            writer.write(b"PING\r\n")
            return await asyncio.wait_for(reader.read(64), 20)
        finally:
            writer.close()
    return b""


@pytest.mark.usefixtures("operator")
def test_without_cert_manager_a_job_is_refused_in_words_that_name_it(admin: Client, namespace: str) -> None:
    groups = {one["name"] for one in admin.raw("GET", "/apis")["groups"]}
    if cert_manager.GROUP in groups:
        pytest.skip("this cluster has cert-manager")
    admin.create(encrypted(admin, namespace))
    job = wait_for(admin, namespace, Accepted="DryRunRejected", summary="Rejected")
    said = condition(job, "Accepted")["message"]
    assert said == "the cluster knows no Certificate of cert-manager.io/v1, for which the runtime asks: install it"
    assert not admin.list("v1", "Secret", namespace)


@pytest.mark.usefixtures("operator")
def test_a_secret_that_cert_manager_left_keeps_a_self_signed_job_of_that_name_away_in_words(
    admin: Client, namespace: str
) -> None:
    for obj in operators.rendered("rbac-operator", values=("tls.mode=SelfSigned",)):
        admin.apply(obj)
    metadata = {"name": "tiny-tls-operator", "namespace": namespace}
    left = {key: base64.b64encode(b"of another authority").decode() for key in (tls.CERTIFICATE_FILE, tls.KEY_FILE)}
    admin.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "data": left}
    )
    try:
        admin.create(encrypted(admin, namespace, mode="SelfSigned"))
        job = wait_for(admin, namespace, Accepted="DryRunRejected")
        assert 'Secret "tiny-tls-operator" is invalid: type' in condition(job, "Accepted")["message"]
        admin.delete({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
        wait_for(admin, namespace, Prepared="True", timeout_s=RETRY_REFUSED_S + 60)
    finally:
        for obj in operators.rendered("rbac-operator", values=BY_CERT_MANAGER):
            admin.apply(obj)
    assert b"BEGIN CERTIFICATE" in cert_manager.identity(admin, namespace, "tiny-tls-operator").certificate


@pytest.mark.nightly
@pytest.mark.usefixtures("real", "operator")
class TestWithCertManager:
    """Its own controllers, its own definitions."""

    def test_each_role_gets_a_certificate_of_its_own_names_and_uses_under_the_keys_that_its_pods_mount(
        self, admin: Client, namespace: str
    ) -> None:
        cert_manager.authority(admin, namespace)
        admin.create(encrypted(admin, namespace))
        wait_for(admin, namespace, Prepared="True")
        asked = cert_manager.issued(admin, namespace)
        roles = {"controller", "trainer", "worker", "generation", "gateway", "reward", "redis"}
        assert set(asked) == {*roles, "operator"}
        for who in asked:
            data = cert_manager.secret(admin, namespace, names.tls_secret("tiny", who))
            shown = x509.load_pem_x509_certificate(data["tls.crt"])
            alternatives = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            host = f"{who}.{namespace}.svc" if who == "operator" else f"tiny-{who}.{namespace}.svc"
            wanted = {host} if who == "operator" else {host, f"*.{host}"}
            assert wanted <= set(alternatives.get_values_for_type(x509.DNSName)), who
            assert set(alternatives.get_values_for_type(x509.DNSName)) == set(asked[who]["spec"]["dnsNames"])
            assert [str(one) for one in alternatives.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
            uses = set(shown.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
            assert uses == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
            assert not shown.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
            assert (shown.not_valid_after_utc - shown.not_valid_before_utc).days == 30
        pods = eventually(lambda: self._mounts(admin, namespace, roles), "a pod of each role")
        for role, (name, items) in pods.items():
            assert name == f"tiny-tls-{role}"
            data = cert_manager.secret(admin, namespace, name)
            assert [item["path"] for item in items] == ["ca.crt", "tls.crt", "tls.key"]
            assert all(data[item["key"]] for item in items)

    @staticmethod
    def _mounts(admin: Client, namespace: str, roles: set[str]) -> dict[str, tuple[str, list[Object]]]:
        found = {}
        for pod in admin.list("v1", "Pod", namespace, "areal.dev/rljob=tiny"):
            role = pod["metadata"]["labels"]["areal.dev/role"]
            for volume in pod["spec"]["volumes"]:
                if volume["name"] == "tls":
                    found[role] = volume["secret"]["secretName"], volume["secret"]["items"]
        assert set(found) == roles, roles - set(found)
        return found

    @pytest.mark.parametrize("above", ["", "root"])
    async def test_each_role_is_known_by_its_services_name_and_takes_its_own_authoritys_certificates_alone(
        self, admin: Client, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str
    ) -> None:
        own = certified(admin, namespace, above)
        crt, key = leaf(authority(), ["*"])
        stranger = TlsIdentity(own["operator"].authorities, crt.encode(), key.encode())
        for role in (Role(who) for who in own if who != "operator"):
            host, other = (names.service_host("tiny", namespace, one) for one in (role, Role.FINISH))
            monkeypatch.setenv(tls.ENV_TLS_DIR, str(cert_manager.mount(tmp_path / role, own[role])))
            async with serving(role) as address:
                for caller, name in (("operator", host), ("worker", host), ("worker", f"tiny-{role}-0.{host}")):
                    await score(address, own[caller], name)
                for wrong, name in ((stranger, host), (None, host), (own["worker"], other)):
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await score(address, wrong, name)
                    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

    async def test_redis_and_the_gateways_front_are_known_by_their_names_likewise(
        self, admin: Client, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = certified(admin, namespace)
        places = {who: cert_manager.mount(tmp_path / who, own[who]) for who in ("controller", "redis", "gateway")}
        monkeypatch.setenv(tls.ENV_TLS_DIR, str(places["controller"]))
        crt, key = leaf(authority(), ["*"])
        strange = cert_manager.mount(
            tmp_path / "stranger", TlsIdentity(own["redis"].authorities, crt.encode(), key.encode())
        )
        with running(tmp_path, places["redis"]) as port:
            async with AsyncLedger(f"127.0.0.1:{port}", "job", **LOGIN) as ledger:
                await ledger.claim(1)
            host = names.service_host("tiny", namespace, Role.REDIS)
            assert b"NOAUTH" in await ping(port, places["controller"], host)
            assert await ping(port, strange, host) == b""
            assert await ping(port, None, host) == b""
        front = names.front_host("tiny", namespace, Role.GATEWAY)
        trusting = https_client()
        monkeypatch.setenv(tls.ENV_TLS_DIR, str(places["gateway"]))
        app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("hello"))])
        http = HttpServer(app, "127.0.0.1", 0, grace_s=1, context=https_server())
        port = http.start()
        try:
            for verify, name in ((trusting, front), (True, front), (trusting, "elsewhere.svc")):
                async with httpx.AsyncClient(verify=verify, trust_env=False) as agent:
                    call = agent.get(f"https://127.0.0.1:{port}/", extensions={"sni_hostname": name})
                    if verify is trusting and name == front:
                        assert (await call).text == "hello"
                    else:
                        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                            await call
        finally:
            await http.stop()

    async def test_certificates_are_renewed_with_other_keys_and_no_call_fails(
        self, admin: Client, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = certified(admin, namespace)
        place = cert_manager.mount(tmp_path / "controller", own["controller"])
        monkeypatch.setenv(tls.ENV_TLS_DIR, str(place))
        host = names.service_host("tiny", namespace, Role.CONTROLLER)
        async with serving(Role.CONTROLLER) as address, calling(address, host, lambda: own["worker"]) as calls:
            shown, keys = {await certificate(address)}, {own["controller"].key, own["worker"].key}
            await calls(50)
            await asyncio.to_thread(cert_manager.renew, admin, namespace, "areal-authority")
            for who in ("worker", "controller", "worker", "controller"):
                name = names.tls_secret("tiny", who)
                own[who] = await asyncio.to_thread(cert_manager.renew, admin, namespace, name)
                keys.add(own[who].key)
                cert_manager.mount(place, own["controller"])
                await calls(50)
                shown.add(await certificate(address))
        assert len(shown) == 3
        assert len(keys) == 6

    async def test_an_authority_with_another_key_is_strange_to_who_has_the_old_one(
        self, admin: Client, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = certified(admin, namespace, keeps_key=False)
        host = names.service_host("tiny", namespace, Role.CONTROLLER)
        cert_manager.renew(admin, namespace, "areal-authority")
        newest = cert_manager.renew(admin, namespace, "tiny-tls-controller")
        monkeypatch.setenv(tls.ENV_TLS_DIR, str(cert_manager.mount(tmp_path / "controller", newest)))
        async with serving(Role.CONTROLLER) as address:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await score(address, own["worker"], host)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            own["worker"] = cert_manager.renew(admin, namespace, "tiny-tls-worker")
            await score(address, own["worker"], host)
        assert own["worker"].authorities == newest.authorities

    async def test_redis_takes_a_renewed_certificate_while_it_is_used(
        self, admin: Client, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = cert_manager.mount(tmp_path / "redis", certified(admin, namespace)["redis"])
        monkeypatch.setenv(tls.ENV_TLS_DIR, str(place))
        with running(tmp_path, place) as port:
            async with AsyncLedger(f"127.0.0.1:{port}", "job", **LOGIN) as ledger:
                await ledger.claim(1)
                renewal = asyncio.create_task(ledger.keep_certificate_fresh(period_s=0.05))
                before = await certificate(f"127.0.0.1:{port}")
                newest = await asyncio.to_thread(cert_manager.renew, admin, namespace, "tiny-tls-redis")
                cert_manager.mount(place, newest)
                for _ in range(2_000):
                    await ledger.advance(1, 0)
                    if (shown := await certificate(f"127.0.0.1:{port}")) != before:
                        break
                    await asyncio.sleep(0.01)
                await ledger._redis.connection_pool.disconnect()  # the next call dials again
                await ledger.advance(1, 0)
                assert not renewal.done()
                renewal.cancel()
        assert shown.strip() == newest.certificate.decode().strip()

    def test_the_operator_calls_a_jobs_roles_with_its_own_certificate(
        self, admin: Client, namespace: str, pods: ScriptedPods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cert_manager.authority(admin, namespace)
        hosts = [names.service_host("tiny", namespace, role) for role in (Role.CONTROLLER, Role.TRAINER)]
        both = cert_manager.ask(admin, namespace, "both", hosts)  # all pods here are one process
        monkeypatch.setenv(tls.ENV_TLS_DIR, str(cert_manager.mount(tmp_path / "both", both)))
        run = pods.run(namespace, "tiny")
        admin.create(encrypted(admin, namespace))
        wait_for(admin, namespace, Progressing="StepReported")
        admin.patch(read(admin, namespace), {"spec": {"algorithm": {"maxSteps": run.step + 5}}})
        job = wait_for(admin, namespace, Complete="True")
        assert job["status"]["runtimeSnapshot"]["tls"] is True
        assert run.epochs == [1]

    def test_an_issuer_that_is_not_there_is_named_in_the_status(self, admin: Client, namespace: str) -> None:
        admin.create(encrypted(admin, namespace, held=True, issuer="nobody", issuerKind="ClusterIssuer"))
        job = eventually(
            lambda: waits(admin, namespace, "CertificateMissing", "not found"), "the status says so", timeout_s=90
        )
        assert idle(job)["text"] == (
            "Certificate tiny-tls-controller is not issued by ClusterIssuer nobody: "
            'Referenced "ClusterIssuer" not found: clusterissuer.cert-manager.io "nobody" not found'
        )

    def test_a_request_that_is_denied_is_named_in_the_status(
        self, admin: Client, namespace: str, real: CertManager
    ) -> None:
        cert_manager.authority(admin, namespace)
        real.stop()
        real.start(cert_manager.APPROVER)
        try:
            admin.create(encrypted(admin, namespace, held=True))
            cert_manager.deny(admin, namespace, "tiny-tls-controller", "no policy lets team-a have this name")
            job = eventually(
                lambda: waits(admin, namespace, "CertificateMissing", "no policy"), "the status says so", timeout_s=90
            )
        finally:
            real.stop()
            real.start()
        assert "Certificate tiny-tls-controller is not issued by Issuer areal: no policy lets" in idle(job)["text"]
