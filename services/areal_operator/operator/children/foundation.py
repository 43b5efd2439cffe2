"""Objects that exist before the first pod: ServiceAccount, claims, ConfigMaps, NetworkPolicies, the Secret.

One of the ConfigMaps is the snapshot of the job's runtime, taken when the job is accepted: editing a runtime changes
later jobs only.
"""

import base64
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from areal.admit.cluster import redis_files
from areal.errors import ConfigError
from areal.plan import access
from areal.plan import cluster_names as names
from areal.plan.cluster_names import Role
from areal.plan.role_specs import redis_logins
from areal.spec.quantity import kubernetes_bytes
from areal.spec.runtime import SNAPSHOT_KEY, RuntimeSpec, Volume, volume_of

from areal_operator.operator.children import network
from areal_operator.operator.children.files import job_files_map
from areal_operator.operator.children.needs import redis_disk_bytes
from areal_operator.operator.children.tls import certificate_requests
from areal_operator.operator.children.wanted import JobBlueprint, Json, child

_SECRET_BYTES = 32


def foundation(w: JobBlueprint) -> list[Json]:
    """ServiceAccount, claims, ConfigMaps and NetworkPolicies, in the order in which they are applied."""
    files = job_files_map(w)
    return [
        child(w, "v1", "ServiceAccount", names.service_account(w.name), automountServiceAccountToken=False),
        *_claims(w),
        *([files] if files is not None else ()),
        runtime_snapshot(w),
        *network.network_policies(w),
        *certificate_requests(w),
    ]


def access_secret(w: JobBlueprint, make: Callable[[], str] = lambda: secrets.token_urlsafe(_SECRET_BYTES)) -> Json:
    """The Secret with the callers' tokens and Redis' logins, to be created once.

    What `w.secrets` has is kept, the rest is made by `make`.
    """
    known = w.secrets or {}
    values = {key: known.get(key) or make() for key in access.secret_keys()}
    values[names.DIGESTS_KEY] = access.digests_text(values)
    if w.one_token:
        values = {names.TOKEN_KEY: known[names.TOKEN_KEY]}
    if Role.REDIS in w.roles:
        logins = sorted(set(redis_logins().values()))
        passwords = {user: known.get(names.password_key(user)) or make() for user in logins}
        values |= {names.password_key(user): password for user, password in passwords.items()}
        values[names.ACL_KEY] = redis_files(w.resolved, passwords, by_tls=w.encrypted)[1]
    data = {key: base64.b64encode(text.encode()).decode() for key, text in values.items()}
    return child(w, "v1", "Secret", names.access_secret(w.name), type="Opaque", data=data)


def _claims(w: JobBlueprint) -> list[Json]:
    """The job's own volumes; they go with the job. Redis' is one pod's, and stays while the job is suspended."""
    volume = volume_of(w.job.spec, w.runtime)
    found = []
    if volume.claim_name is None:
        found.append(_claim(w, names.run_claim(w.name), None, volume, volume.size_bytes, volume.access_mode))
        if w.job.spec.storage.retain == "All":
            del found[0]["metadata"]["ownerReferences"]
    if Role.REDIS in w.roles:
        disk = redis_disk_bytes(int(w.job.spec.replay.budget_bytes), w.redis_bytes)
        found.append(_claim(w, names.workload(w.name, Role.REDIS), Role.REDIS, volume, disk, "ReadWriteOnce"))
    return found


def _claim(w: JobBlueprint, name: str, role: Role | None, volume: Volume, size_bytes: int, access_mode: str) -> Json:
    spec: Json = {"accessModes": [access_mode], "resources": {"requests": {"storage": kubernetes_bytes(size_bytes)}}}
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    return child(w, "v1", "PersistentVolumeClaim", name, role=role, spec=spec)


def ownership(w: JobBlueprint, *, stays: bool) -> Json:
    """Merge patch of a claim's metadata by which it outlives its job, whose spec and runtime it tells then, or not."""
    told = {names.ANNOTATION_JOB: json.dumps(w.raw["spec"]), names.ANNOTATION_RUNTIME: _text(w.runtime)}
    fits = stays and sum(map(len, told.values())) < 200_000  # 262,144 with what others write
    return {
        "labels": {names.LABEL_RUN: w.uid if stays else None},
        "annotations": told if fits else dict.fromkeys(told),
        "ownerReferences": None if stays else [w.owner()],
    }


def runtime_snapshot(w: JobBlueprint) -> Json:
    """The ConfigMap that keeps it."""
    return child(w, "v1", "ConfigMap", names.runtime_config_map(w.name), data={SNAPSHOT_KEY: _text(w.runtime)})


def snapshot_hash(runtime: RuntimeSpec) -> str:
    """Hash of a job's runtime, for its status. Fields that nobody gave don't count: a new default changes no hash."""
    return hashlib.sha256(_text(runtime).encode()).hexdigest()[:16]


def read_snapshot(config_map: Mapping[str, Any]) -> RuntimeSpec:
    """The runtime that `runtime_snapshot` kept. Raises ConfigError when somebody damaged it."""
    try:
        return RuntimeSpec.model_validate(json.loads((config_map.get("data") or {})[SNAPSHOT_KEY]))
    except (KeyError, ValueError) as error:
        name = (config_map.get("metadata") or {}).get("name", "")
        raise ConfigError(
            f"the ConfigMap {name} holds no runtime any more: {error}",
            fix=f"Delete the job, or restore the ConfigMap {name}.",
        ) from error


def _text(runtime: RuntimeSpec) -> str:
    given = runtime.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json.dumps(given, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
