"""cert-manager on the tests' control plane: its definitions, its controllers, its objects, and what tests ask of them.

The controllers are cert-manager's own, from its module, in a command of the tests' (`tools/k8s/build nightly`); its
webhook, which checks what people write, is not there.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from areal.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE, TlsIdentity
from kube.harness import tools
from kube.harness.client import Client
from kube.harness.control_plane import Cluster
from kube.harness.fixtures import is_established
from kube.harness.processes import Process, eventually
from support.certificates import put

GROUP = "cert-manager.io"
API = f"{GROUP}/v1"
ROOT = "tests-self-signed"
APPROVER = "certificaterequests-approver"
Object = dict[str, Any]


class CertManager:
    """Its controllers; `start` them, then `stop` them."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._process: Process | None = None

    def start(self, *without: str) -> None:
        """Install its definitions and return when it issues; `without` names controllers that don't run."""
        self._install()
        command = [tools.tool("cert-manager"), f"--kubeconfig={self._cluster.kubeconfig}"]
        command += [f"--cluster-resource-namespace={GROUP}", f"--without={','.join(without)}"]
        log = self._directory / f"cert-manager-{len(without)}.log"
        process = self._process = Process("cert-manager", command, log)
        process.wait_until(lambda: "its controllers run" in process.tail(1000), "its controllers", timeout_s=60)
        self_signed = {
            "apiVersion": API,
            "kind": "ClusterIssuer",
            "metadata": {"name": ROOT},
            "spec": {"selfSigned": {}},
        }
        self._cluster.admin.apply(self_signed)
        eventually(lambda: holds(self._cluster.admin.get(API, "ClusterIssuer", "", ROOT), "Ready"), "the first issuer")

    def stop(self) -> None:
        """Ends them; what they issued stays."""
        if self._process is not None:
            self._process.stop()

    def _install(self) -> None:
        files = sorted((tools.tools_dir().parent / "cert-manager").glob("*.yaml"))
        assert files, "cert-manager's definitions aren't there: run `tools/k8s/build nightly`"
        definitions = [one for path in files for one in yaml.safe_load_all(path.read_text()) if one]
        for definition in definitions:
            self._cluster.admin.apply(definition)
        for definition in definitions:
            name = definition["metadata"]["name"]
            eventually(lambda name=name: is_established(self._cluster.admin, name), f"{name} established")


def authority(admin: Client, namespace: str, name: str = "areal", *, above: str = "", keeps_key: bool = True) -> None:
    """An Issuer in the namespace with an authority of its own, signed by itself, or by the Issuer `above` it."""
    spec = {
        "isCA": True, "commonName": name, "secretName": f"{name}-authority", "duration": "2160h",
        "privateKey": {"algorithm": "ECDSA", "rotationPolicy": "Never" if keeps_key else "Always"},
        "issuerRef": {"name": above or ROOT, "kind": "Issuer" if above else "ClusterIssuer", "group": GROUP},
    }  # fmt: skip
    metadata = {"name": f"{name}-authority", "namespace": namespace}
    admin.create({"apiVersion": API, "kind": "Certificate", "metadata": metadata, "spec": spec})
    issuer = {"name": name, "namespace": namespace}
    admin.create(
        {"apiVersion": API, "kind": "Issuer", "metadata": issuer, "spec": {"ca": {"secretName": f"{name}-authority"}}}
    )
    eventually(lambda: holds(admin.get(API, "Issuer", namespace, name), "Ready"), f"the issuer {name}")


def ask(admin: Client, namespace: str, name: str, hosts: list[str], issuer: str = "areal") -> TlsIdentity:
    """A Certificate of the tests' own, once it is issued."""
    spec = {
        "secretName": name, "dnsNames": hosts, "usages": ["server auth", "client auth"],
        "issuerRef": {"name": issuer, "kind": "Issuer", "group": GROUP},
    }  # fmt: skip
    metadata = {"name": name, "namespace": namespace}
    admin.create({"apiVersion": API, "kind": "Certificate", "metadata": metadata, "spec": spec})
    eventually(lambda: holds(admin.get(API, "Certificate", namespace, name), "Ready"), f"the certificate {name}")
    return identity(admin, namespace, name)


def issued(admin: Client, namespace: str, job: str = "tiny") -> dict[str, Object]:
    """A job's Certificates by holder, once there are some and each is Ready."""

    def ready() -> dict[str, Object]:
        found = admin.list(API, "Certificate", namespace, f"areal.dev/rljob={job}")
        waiting = {one["metadata"]["name"]: one.get("status") for one in found if not holds(one, "Ready")}
        assert found, "no Certificate"
        assert not waiting, waiting
        return {one["metadata"]["name"].removeprefix(f"{job}-tls-"): one for one in found}

    return eventually(ready, f"certificates of {job}", timeout_s=60)


def secret(admin: Client, namespace: str, name: str) -> dict[str, bytes]:
    """What a Secret has now."""
    found = admin.get("v1", "Secret", namespace, name) or {}
    return {key: base64.b64decode(text) for key, text in found.get("data", {}).items()}


def identity(admin: Client, namespace: str, name: str) -> TlsIdentity:
    """The same, as a process has it."""
    data = secret(admin, namespace, name)
    return TlsIdentity(data[CA_FILE], data[CERTIFICATE_FILE], data[KEY_FILE])


def mount(directory: Path, own: TlsIdentity) -> Path:
    """The directory, with the files as a pod of the holder has them."""
    return put(directory, (own.certificate.decode(), own.key.decode()), (own.authorities.decode(), ""))


def renew(admin: Client, namespace: str, name: str) -> TlsIdentity:
    """Ask for a Certificate anew as `cmctl renew` does, and return what its Secret has once it is issued."""
    found = admin.get(API, "Certificate", namespace, name)
    assert found is not None, name
    before = identity(admin, namespace, found["spec"]["secretName"])
    asked = _condition("Issuing", "ManuallyTriggered", "Certificate re-issuance manually triggered")
    asked["observedGeneration"] = found["metadata"]["generation"]
    others = [one for one in found["status"]["conditions"] if one["type"] != "Issuing"]
    admin.patch(found, {"status": {"conditions": [*others, asked]}}, subresource="status")

    def another() -> TlsIdentity | None:
        now = identity(admin, namespace, found["spec"]["secretName"])
        return now if now.certificate != before.certificate else None

    newest = eventually(another, f"another certificate of {name}", timeout_s=60)
    assert newest is not None
    return newest


def deny(admin: Client, namespace: str, certificate: str, why: str) -> None:
    """Refuse a Certificate's request as an approver does, once there is one."""

    def asked() -> Object | None:
        listed = admin.list(API, "CertificateRequest", namespace)
        return next((one for one in listed if one["metadata"]["name"].startswith(f"{certificate}-")), None)

    request = eventually(asked, f"a request of {certificate}")
    assert request is not None
    conditions = [*request.get("status", {}).get("conditions", []), _condition("Denied", "policy.tests", why)]
    admin.patch(request, {"status": {"conditions": conditions}}, subresource="status")


def _condition(kind: str, reason: str, message: str) -> Object:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}


def holds(found: Object | None, kind: str) -> bool:
    """Whether a condition is True."""
    conditions = (found or {}).get("status", {}).get("conditions", [])
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)
