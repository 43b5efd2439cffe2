"""Certificates of a job: renewed in time, with no pod refused by another, and mounted by the role alone."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from areal.plan.cluster_names import LABEL_JOB, Role
from areal.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from areal_operator.kube.errors import ForbiddenError, NotFoundError
from areal_operator.kube.resources import Json
from areal_operator.operator import certificates
from areal_operator.operator.certificates import SPREAD_S, STATE_KEY, AuthorityState, due, made
from areal_operator.operator.children import JobBlueprint, access_secret, foundation, workloads
from areal_operator.operator.children.tls import AUTHORITY, certificate_names
from areal_operator.operator.observed import uncertified
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st
from operator_stage import KEY, Stage
from support.cluster_jobs import CPU_RUNTIME, large_wanted, quickstart, quickstart_wanted, wanted
from support.small_children import runtime_object

DAY = 86400.0
START = 1_800_000_000.0
NAMES = {"operator": ["operator.a.svc"], "trainer": ["trainer.a.svc", "*.trainer.a.svc"], "worker": ["worker.a.svc"]}


class Platform:
    """Secrets, and what pods hold of them: a kubelet brings a change at the latest when two minutes have passed."""

    def __init__(self) -> None:
        self.now = START
        self.state: AuthorityState | None = None
        self.secrets: dict[str, dict[str, str]] = {}
        self.pods: dict[str, dict[str, str]] = {}

    def look(self, lost: frozenset[str] = frozenset()) -> None:
        """The operator's; writes of those that are `lost` don't arrive."""
        state, wrong = due(self.state, self.secrets, NAMES, self.now)
        if AUTHORITY in lost and state != self.state:
            return  # an error ends the look
        self.state = AuthorityState.parse(state.text())
        self.secrets |= {who: data for who, data in wrong.items() if who not in lost}

    def wait(self, seconds: float, early: frozenset[str] = frozenset()) -> None:
        """Pods that are `early` have what is new at once."""
        self.now += seconds
        told = NAMES if seconds >= 120 else early
        self.pods |= {who: dict(data) for who, data in self.secrets.items() if who in told}

    def check(self) -> None:
        """Every pod accepts every other, and none has a certificate that is over."""
        shown = {
            who: x509.load_pem_x509_certificate(data[CERTIFICATE_FILE].encode()) for who, data in self.pods.items()
        }
        trust = {who: x509.load_pem_x509_certificates(data[CA_FILE].encode()) for who, data in self.pods.items()}
        for one, other in product(self.pods, self.pods):
            assert any(_signed(shown[one], authority) for authority in trust[other]), f"{other} refuses {one}"
        for certificate in (*shown.values(), *(one for listed in trust.values() for one in listed)):
            assert certificate.not_valid_before_utc.timestamp() < self.now < certificate.not_valid_after_utc.timestamp()


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:
        return False
    return True


STEPS = st.lists(
    st.tuples(
        st.sampled_from([1.0, 60.0, 120.0, SPREAD_S / 2, SPREAD_S, DAY, 5 * DAY]),
        st.frozensets(st.sampled_from([AUTHORITY, *NAMES])),
        st.frozensets(st.sampled_from([*NAMES])),
    ),
    max_size=30,
)


Step = tuple[float, frozenset[str], frozenset[str]]
"""Seconds that go by; whose writes are lost then; which pods are early."""


def run(steps: Sequence[Step]) -> Platform:
    """Weeks about the day on which an authority is replaced; writes are lost, and made good within days."""
    platform = Platform()
    platform.state = AuthorityState((made("authority", START - 176 * DAY, 360 * DAY),), 0, START)
    platform.look()
    platform.wait(120)
    lost_for = 0.0
    for seconds, lost, early in steps:
        lost_for = lost_for + seconds if lost else 0.0
        platform.wait(seconds, early)
        platform.check()
        platform.look(lost if lost_for < 8 * DAY else frozenset())
        platform.check()
    for seconds in [5 * DAY] * 3 + [SPREAD_S] * 8:
        platform.wait(seconds)
        platform.check()
        platform.look()
        platform.check()
    return platform


@given(steps=STEPS)
def test_no_pod_ever_refuses_another_whatever_writes_are_lost(steps: list[Step]) -> None:
    platform = run(steps)
    assert platform.state is not None
    assert len(platform.state.authorities) == 1  # the rotation came to its end
    assert platform.secrets == platform.pods


def test_an_authority_is_replaced_and_the_old_one_is_gone() -> None:
    platform = run([])
    assert platform.state is not None
    [(new, _)] = platform.state.authorities
    assert x509.load_pem_x509_certificate(new.encode()).not_valid_before_utc.timestamp() > START
    assert [data[CA_FILE] for data in platform.pods.values()] == [new] * len(NAMES)


@pytest.mark.parametrize("mutant", ["at once", "skips a step", "old one goes first"])
def test_the_check_finds_what_would_refuse_pods(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    right = certificates._following

    def wrong(state: AuthorityState, now: float) -> AuthorityState | None:
        following = right(state, now)
        if following is None:
            return None
        if mutant == "skips a step" and len(state.authorities) == 1:
            return replace(following, signing=1)
        if mutant == "old one goes first" and len(state.authorities) == 1:
            return AuthorityState(following.authorities[1:], 0, now)
        return following

    monkeypatch.setattr(certificates, "_following", wrong)
    if mutant == "at once":
        monkeypatch.setattr(certificates, "SPREAD_S", 0.0)
    nobody, trainer = frozenset[str](), frozenset({"trainer"})
    with pytest.raises(AssertionError, match="refuses"):
        run([(5 * DAY, nobody, nobody), *[(1.0, nobody, trainer)] * 4])


def test_a_certificate_is_renewed_after_two_thirds_of_its_life_and_not_before() -> None:
    platform = Platform()
    platform.look()
    first = dict(platform.secrets)
    platform.wait(19.9 * DAY)
    platform.look()
    assert platform.secrets == first
    platform.wait(0.2 * DAY)
    platform.look()
    assert {who for who in NAMES if platform.secrets[who] != first[who]} == set(NAMES)
    assert {data[CA_FILE] for data in platform.secrets.values()} == {data[CA_FILE] for data in first.values()}


@pytest.mark.parametrize("damage", [CERTIFICATE_FILE, KEY_FILE, CA_FILE, "names"])
def test_what_is_damaged_is_made_again(damage: str) -> None:
    state, first = due(None, {}, NAMES, START)
    names = {**NAMES, "worker": ["another.a.svc"]} if damage == "names" else NAMES
    if damage != "names":
        first["worker"].pop(damage)
    same, wrong = due(state, first, names, START + 1)
    assert list(wrong) == ["worker"]
    assert same.authorities == state.authorities
    assert due(same, {**first, **wrong}, names, START + 2)[1] == {}


def test_a_certificate_is_for_calling_and_for_being_called_by_its_own_names_alone() -> None:
    state, first = due(None, {}, NAMES, START)
    shown = x509.load_pem_x509_certificate(first["trainer"][CERTIFICATE_FILE].encode())
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == NAMES["trainer"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert not shown.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert state.authorities[0][1] not in str(first)  # no pod has the key that signs


# ---- objects


def encrypted(mode: str = "SelfSigned", **tls: str) -> JobBlueprint:
    return wanted(quickstart(), {**CPU_RUNTIME, "tls": {"mode": mode, **tls}})


def pod_of(w: JobBlueprint, role: Role) -> Json:
    [found] = [
        one for one in workloads(w) if one["metadata"]["name"] == f"{w.name}-{role}" and "template" in one["spec"]
    ]
    spec: Json = found["spec"]["template"]["spec"]
    return spec


def test_each_role_mounts_its_own_certificate_as_a_whole_volume() -> None:
    w = encrypted()
    for role in w.roles:
        pod = pod_of(w, role)
        [volume] = [volume for volume in pod["volumes"] if volume["name"] == "tls"]
        assert volume["secret"]["secretName"] == f"digits-tls-{role}"
        assert [item["path"] for item in volume["secret"]["items"]] == [CA_FILE, CERTIFICATE_FILE, KEY_FILE]
        [mount] = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "tls"]
        assert mount == {"name": "tls", "mountPath": "/areal/tls", "readOnly": True}  # a subPath would never change
        env = {variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]}
        assert (env["AREAL_TLS_DIR"], env["AREAL_HEALTH_SHIFT"]) == ("/areal/tls", "50")
    assert AUTHORITY not in str(workloads(w))


def test_servers_are_dialled_by_a_name_of_their_certificate() -> None:
    w = encrypted()
    env = {variable["name"]: variable.get("value") for variable in pod_of(w, Role.GENERATION)["containers"][0]["env"]}
    host = "digits-generation.team-a.svc"
    assert env["AREAL_ADDRESS"] == f"$(AREAL_POD_NAME).{host}"
    assert certificate_names(w)["generation"] == [host, f"*.{host}"]
    ends = w.resolved.endpoints
    for address, role in (
        (ends.controller, "controller"),
        (ends.redis, "redis"),
        (ends.reward_custom, "reward-custom"),
    ):
        assert address is not None
        assert address.partition(":")[0] in certificate_names(w)[role]


def test_kubelets_probe_ports_that_speak_no_tls() -> None:
    for role, ready in ((Role.CONTROLLER, 9050), (Role.TRAINER, 9051), (Role.WORKER, 9050)):
        main = pod_of(encrypted(), role)["containers"][0]
        assert main["livenessProbe"]["grpc"] == {"port": 9051}
        assert main["readinessProbe"]["grpc"] == {"port": ready}


def test_redis_speaks_tls_alone_and_its_controller_renews_the_certificate() -> None:
    w = encrypted()
    [conf] = [one["data"]["redis.conf"] for one in foundation(w) if "redis.conf" in one.get("data", {})]
    settings = dict(line.split(" ", 1) for line in conf.splitlines())
    assert (settings["port"], settings["tls-port"], settings["tls-auth-clients"]) == ("0", "6379", "yes")
    assert settings["tls-cert-file"] == '"/areal/tls/tls.crt"'
    acl = base64.b64decode(access_secret(w)["data"]["users.acl"]).decode()
    assert [line.split()[1] for line in acl.splitlines() if "+config|set" in line] == ["controller"]


@pytest.mark.parametrize("w", [quickstart_wanted(), large_wanted()])
def test_without_tls_nothing_of_it_is_there(w: JobBlueprint) -> None:
    assert certificate_names(w) == {}
    text = str([*foundation(w), *workloads(w)])
    assert not any(
        word in text for word in ("tls-", "AREAL_TLS_DIR", "AREAL_HEALTH_SHIFT", "AREAL_ADDRESS", "cert-manager")
    )


def test_cert_manager_is_asked_for_one_certificate_a_role_and_the_operators() -> None:
    w = encrypted("CertManager", issuer="ca-of-team-a")
    asked = {one["metadata"]["name"]: one["spec"] for one in foundation(w) if one["kind"] == "Certificate"}
    assert set(asked) == {f"digits-tls-{who}" for who in ("operator", *w.roles)}
    spec = asked["digits-tls-trainer"]
    assert spec["secretName"] == "digits-tls-trainer"
    assert spec["issuerRef"] == {"name": "ca-of-team-a", "kind": "Issuer", "group": "cert-manager.io"}
    assert (spec["duration"], spec["renewBefore"], spec["privateKey"]["rotationPolicy"]) == ("720h", "240h", "Always")
    assert spec["usages"] == ["server auth", "client auth"]
    assert not any(one["kind"] == "Certificate" for one in foundation(encrypted()))


# ---- effects


@pytest.fixture
def stage() -> Stage:
    found = Stage(runtime=False)
    runtime = runtime_object()
    runtime["spec"]["tls"] = {"mode": "SelfSigned"}
    found.cluster.api.put(runtime)
    return found


def secrets(stage: Stage) -> dict[str, Any]:
    return {
        one["metadata"]["name"]: one["data"]
        for one in stage.cluster.api.all("Secret")
        if "-tls-" in one["metadata"]["name"]
    }


def test_the_operator_signs_before_the_first_pod_and_renews_a_job_that_runs(stage: Stage) -> None:
    stage.until_training()
    kinds = [(write.kind, write.name) for write in stage.operator.writes]
    first_pods = next(at for at, (kind, _) in enumerate(kinds) if kind == "StatefulSet")
    made = [name for kind, name in kinds[:first_pods] if kind == "Secret" and "-tls-" in name]
    assert made[0] == f"{KEY[1]}-tls-{AUTHORITY}"
    assert set(made) == set(secrets(stage))
    assert f"{KEY[1]}-tls-trainer" in made
    before = secrets(stage)
    stage.step(SPREAD_S * 2)
    assert secrets(stage) == before
    stage.step(21 * DAY)
    after = secrets(stage)
    assert {name for name in after if after[name] != before[name]} == set(after)
    state = [
        AuthorityState.parse(base64.b64decode(each[f"{KEY[1]}-tls-{AUTHORITY}"][STATE_KEY]).decode())
        for each in (before, after)
    ]
    assert state[0].authorities == state[1].authorities


def test_a_new_operator_goes_on_with_the_authority_that_is_there(stage: Stage) -> None:
    stage.until_training()
    before = secrets(stage)
    stage.new_operator()
    stage.step()
    assert secrets(stage) == before
    targets = stage.operator.roles
    assert targets is not None


def test_no_pod_is_made_while_secrets_may_not_be_written(stage: Stage) -> None:
    stage.operator.refusals["Secret"] = ForbiddenError(403, "Forbidden", "no patch of secrets")
    for _ in range(3):
        stage.step()
    assert "no patch of secrets" in stage.condition("Accepted")["message"]
    assert stage.cluster.api.all("StatefulSet") == []


# ---- cert-manager's answers


def certificate(name: str, **conditions: tuple[str, str]) -> Json:
    """A Certificate of the Issuer `areal`; conditions are a status and a message."""
    spec = {"issuerRef": {"name": "areal", "kind": "Issuer"}}
    metadata = {"name": name, "namespace": KEY[0], "labels": {LABEL_JOB: KEY[1]}}
    return {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": metadata,
        "spec": spec,
        **said(conditions),
    }


def request(of: str, **conditions: tuple[str, str]) -> Json:
    """The CertificateRequest that cert-manager made of a Certificate."""
    owner = {"kind": "Certificate", "name": of, "controller": True}
    metadata = {"name": f"{of}-1", "namespace": KEY[0], "labels": {LABEL_JOB: KEY[1]}, "ownerReferences": [owner]}
    return {"apiVersion": "cert-manager.io/v1", "kind": "CertificateRequest", "metadata": metadata, **said(conditions)}


def said(conditions: dict[str, tuple[str, str]]) -> Json:
    listed = [{"type": kind, "status": status, "message": text} for kind, (status, text) in conditions.items()]
    return {"status": {"conditions": listed}} if listed else {}


READY, MISSING = ("True", "up to date"), ("False", "Issuing certificate as Secret does not exist")


@pytest.mark.parametrize(
    ("certificates_", "requests", "why"),
    [
        ([], [], ""),
        ([certificate("a", Ready=READY)], [request("a", Ready=READY)], ""),
        ([certificate("a")], [], "Certificate a is not issued by Issuer areal: cert-manager has not answered"),
        ([certificate("a", Ready=READY), certificate("b", Ready=MISSING)], [], f"Certificate b … {MISSING[1]}"),
        (
            [certificate("b", Ready=MISSING)],
            [request("a", Ready=("False", "of another")), request("b", Ready=("False", "no such issuer"))],
            "Certificate b … no such issuer",
        ),
        (
            [certificate("b", Ready=MISSING)],
            [request("b", Ready=("False", "it was denied"), Denied=("True", "by a policy"))],
            "Certificate b … by a policy",
        ),
    ],
)
def test_the_first_certificate_that_is_not_issued_is_named_with_cert_managers_words(
    certificates_: list[Json], requests: list[Json], why: str
) -> None:
    assert uncertified(certificates_, requests) == why.replace("…", "is not issued by Issuer areal:")


@pytest.mark.parametrize("allowed", [True, False])
def test_a_job_waits_for_cert_manager_in_words_where_the_operator_may_ask_it(allowed: bool) -> None:
    stage = Stage(runtime=False)
    runtime = runtime_object()
    runtime["spec"]["tls"] = {"mode": "CertManager"}
    stage.cluster.api.put(runtime)
    if not allowed:
        stage.operator.refusals["Certificate"] = ForbiddenError(403, "Forbidden", "no list of certificates")
    stage.cluster.api.put(certificate("digits-tls-trainer", Ready=MISSING))
    told = set()

    def look() -> bool:
        told.add(stage.status.get("idle", {}).get("cause"))
        return stage.condition("Prepared")["status"] == "True" if stage.status else False

    stage.run(look)
    assert ("CertificateMissing" in told) == allowed
    stage.cluster.api.put(certificate("digits-tls-trainer", Ready=READY))
    secret = {"metadata": {"namespace": KEY[0], "name": f"{KEY[1]}-tls-operator"}, "kind": "Secret", "apiVersion": "v1"}
    pem = {name: base64.b64encode(b"pem").decode() for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)}
    stage.cluster.api.put({**secret, "data": pem})
    stage.until_training()


def test_an_object_that_the_cluster_does_not_know_is_told_once(stage: Stage) -> None:
    unknown = NotFoundError(404, "HTTP404", "PATCH /apis/x: 404 page not found")
    stage.operator.refusals |= {"StatefulSet": unknown, "Deployment": unknown}
    stage.step()
    words = [
        f"the cluster knows no {kind} of apps/v1, for which the runtime asks: install it"
        for kind in ("StatefulSet", "Deployment")
    ]
    assert sorted(stage.condition("Accepted")["message"].split("; ")) == sorted(words)
    stage.operator.refusals["StatefulSet"] = NotFoundError(
        404, "NotFound", 'namespaces "team" not found', {"name": "team"}
    )
    stage.step(120)
    assert 'namespaces "team" not found' in stage.condition("Accepted")["message"]
