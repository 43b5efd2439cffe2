"""Certificates of a job's roles: which names each has, and the objects that hold them or ask for them. Pure."""

import base64
from collections.abc import Mapping

from areal.plan import cluster_names as names
from areal.plan.callers import Outsider
from areal.plan.role_specs import spec_of

from areal_operator.operator.children.wanted import JobBlueprint, Json, child

AUTHORITY = "authority"
"""Whose Secret has the keys that sign: no pod mounts it."""


def certificate_names(w: JobBlueprint) -> dict[str, list[str]]:
    """DNS names by holder: each role, and the operator, which only calls. Empty without TLS."""
    found = {f"{Outsider.OPERATOR}": [f"{Outsider.OPERATOR}.{w.namespace}.svc"]} if w.encrypted else {}
    for role in w.roles if w.encrypted else ():
        host = names.service_host(w.name, w.namespace, role)
        front = [names.front_host(w.name, w.namespace, role)] if spec_of(role).front else []
        found[f"{role}"] = [host, f"*.{host}", *front]
    return found


def certificate_requests(w: JobBlueprint) -> list[Json]:
    """Certificates to ask cert-manager for, where the runtime leaves it to that."""
    tls, found = w.runtime.tls, []
    for who, called in (certificate_names(w) if tls.mode == "CertManager" else {}).items():
        name = names.tls_secret(w.name, who)
        spec: Json = {"secretName": name, "dnsNames": called, "duration": "720h", "renewBefore": "240h"}
        spec["ipAddresses"] = ["127.0.0.1"]  # where a launcher asks its role
        spec["privateKey"] = {"algorithm": "ECDSA", "rotationPolicy": "Always"}
        spec["usages"] = ["server auth", "client auth"]
        spec["issuerRef"] = {"name": tls.issuer, "kind": tls.issuer_kind, "group": "cert-manager.io"}
        found.append(child(w, "cert-manager.io/v1", "Certificate", name, spec=spec))
    return found


def tls_secret(w: JobBlueprint, whose: str, data: Mapping[str, str]) -> Json:
    """The Secret of a holder, or of the authority."""
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    return child(w, "v1", "Secret", names.tls_secret(w.name, whose), type="Opaque", data=encoded)
