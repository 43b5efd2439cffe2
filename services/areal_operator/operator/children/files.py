"""The ConfigMap that every pod of a job reads at start: the resolved job and Redis' configuration.

Owns its name, a hash of its content, and its life: it is immutable, and running pods keep the one that they began with
until the job rests, whichever operator comes. It holds no secret: whoever may read ConfigMaps may read it. Pure.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping

from areal.admit.cluster import redis_files
from areal.plan.cluster_names import REDIS_CONF_KEY, RESOLVED_KEY, Role, job_files
from areal.plan.role_specs import redis_logins

from areal_operator.operator.children.wanted import JobBlueprint, Json, child

VOLUME = "job"  # The volume by which pods mount it

_DIGITS = 12


def files_name(w: JobBlueprint) -> str:
    """The ConfigMap for the job's pods: the one that running pods read, else that of what the job says now."""
    return w.files or _name(w, _data(w))


def job_files_map(w: JobBlueprint) -> Json | None:
    """The ConfigMap to apply; None while pods run from another one."""
    data = _data(w)
    name = _name(w, data)
    return child(w, "v1", "ConfigMap", name, data=data, immutable=True) if w.files in ("", name) else None


def mounted_by(workloads: Iterable[Json]) -> str:
    """The name of the ConfigMap that the pods of running workloads read; empty when none runs."""
    for workload in workloads:
        spec = workload.get("spec") or {}
        if not spec.get("replicas"):
            continue
        for volume in ((spec.get("template") or {}).get("spec") or {}).get("volumes") or ():
            if volume["name"] == VOLUME:
                return str(volume["configMap"]["name"])
    return ""


def resolved_text(config_maps: Iterable[Json]) -> str | None:
    """The resolved job in one of a job's ConfigMaps; None when none has it."""
    texts = ((one.get("data") or {}).get(RESOLVED_KEY) for one in config_maps)
    return next((text for text in texts if text), None)


def _data(w: JobBlueprint) -> dict[str, str]:
    data = {RESOLVED_KEY: w.resolved.model_dump_json(indent=1)}
    if Role.REDIS in w.roles:
        unused = dict.fromkeys(redis_logins().values(), "unused")  # redis.conf holds no password
        data[REDIS_CONF_KEY] = redis_files(w.resolved, unused, by_tls=w.encrypted)[0]
    return data


def _name(w: JobBlueprint, data: Mapping[str, str]) -> str:
    content = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    return job_files(w.name, content[:_DIGITS])
