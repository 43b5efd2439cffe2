"""What must be there before the first pod: account, volumes, files, network rules; and the Secret, made once."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable

from areal.operator.children import network
from areal.operator.children.amounts import size
from areal.operator.children.needs import redis_disk_bytes
from areal.operator.children.objects import child
from areal.operator.children.snapshot import runtime_snapshot
from areal.operator.children.wanted import Json, Wanted
from areal.plan import cluster_names
from areal.plan.cluster import redis_files
from areal.plan.cluster_names import (
    ACL_KEY,
    REDIS_CONF_KEY,
    REDIS_LOGIN,
    RESOLVED_KEY,
    TOKEN_KEY,
    Role,
    job_config_map,
    password_key,
    run_claim,
    service_account,
    workload,
)
from areal.spec.runtime import Volume, volume_of

_SECRET_BYTES = 32
_NO_PASSWORDS = dict.fromkeys(REDIS_LOGIN.values(), "unused")  # redis.conf holds none


def foundation(w: Wanted) -> list[Json]:
    """ServiceAccount, claims, ConfigMaps and NetworkPolicies, in the order in which they are applied."""
    return [
        child(w, "v1", "ServiceAccount", service_account(w.name), automountServiceAccountToken=False),
        *_claims(w),
        _files(w),
        runtime_snapshot(w),
        *network.network_policies(w),
    ]


def access_secret(w: Wanted, make: Callable[[], str] = lambda: secrets.token_urlsafe(_SECRET_BYTES)) -> Json:
    """The Secret with the job's token and Redis' logins, to be created once.

    What `w.secrets` has is kept, the rest is made by `make`.
    """
    known = w.secrets or {}
    values = {TOKEN_KEY: known.get(TOKEN_KEY) or make()}
    if Role.REDIS in w.roles:
        logins = sorted(set(REDIS_LOGIN.values()))
        passwords = {user: known.get(password_key(user)) or make() for user in logins}
        values |= {password_key(user): password for user, password in passwords.items()}
        values[ACL_KEY] = redis_files(w.resolved, passwords)[1]
    data = {key: base64.b64encode(text.encode()).decode() for key, text in values.items()}
    return child(w, "v1", "Secret", cluster_names.access_secret(w.name), type="Opaque", data=data)


def _files(w: Wanted) -> Json:
    """What pods read at start. It holds no secret: whoever may read ConfigMaps may read it."""
    data = {RESOLVED_KEY: w.resolved.model_dump_json(indent=1)}
    if Role.REDIS in w.roles:
        data[REDIS_CONF_KEY] = redis_files(w.resolved, _NO_PASSWORDS)[0]
    return child(w, "v1", "ConfigMap", job_config_map(w.name), data=data)


def _claims(w: Wanted) -> list[Json]:
    """The job's own volumes; they go with the job. Redis' is one pod's, and stays while the job is suspended."""
    volume = volume_of(w.job.spec, w.runtime)
    found = []
    if volume.claim_name is None:
        found.append(_claim(w, run_claim(w.name), None, volume, volume.size_bytes, volume.access_mode))
    if Role.REDIS in w.roles:
        disk = redis_disk_bytes(int(w.job.spec.replay.budget_bytes), w.redis_bytes)
        found.append(_claim(w, workload(w.name, Role.REDIS), Role.REDIS, volume, disk, "ReadWriteOnce"))
    return found


def _claim(w: Wanted, name: str, role: Role | None, volume: Volume, size_bytes: int, access_mode: str) -> Json:
    spec: Json = {"accessModes": [access_mode], "resources": {"requests": {"storage": size(size_bytes)}}}
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    return child(w, "v1", "PersistentVolumeClaim", name, role=role, spec=spec)
